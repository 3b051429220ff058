"""The tables of sweep.html, which a click on a column's head sorts."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from .contents import Contents
from .groups import Configuration, Spread, counted
from .jobs import Job
from .overrides import as_number, shown
from .strategies import FIRST_STEPS, MEMORY, Comparison

# Facts with a column of their own, and how they are written.
FACTS = {
    "global_step": ("steps", ",.0f"),
    "seconds": ("seconds", ",.1f"),
    "samples_per_second": ("samples/s", ",.0f"),
    MEMORY: ("peak MiB", ",.0f"),
}

LAST_LETTERS = 6000
"""Of a traceback: its end says what happened."""

LONG = 32
"""Letters from which on the text of a cell wraps."""

Cell = tuple[str, float | None]
"""What is written, and the number that it is sorted by."""

MISSING: Cell = ("", None)


def jobs(contents: Contents) -> str:
    """All jobs, best first."""
    facts = {
        name: head
        for name, head in FACTS.items()
        if name not in contents.metrics and any(job.fact(name) is not None for job in contents.jobs)
    }
    heads = ["job", *contents.keys, "status", *(head for head, _ in facts.values())]
    rows = []
    for job in contents.jobs:
        # Numbers of jobs are sorted as numbers, names of runs by letters.
        cells: list[Cell] = [(job.name, as_number(job.name))]
        for key in contents.keys:
            text = job.overrides.get(key, "")
            cells.append((shown(text), as_number(text)))
        cells.append((job.status, None))
        cells += [_number(job.fact(name), form) for name, (_, form) in facts.items()]
        cells += [_metric(contents, job, name) for name in contents.metrics]
        kind = "best" if job.name in contents.best else job.status.replace(" ", "-")
        rows.append(_row(cells, f'class="{escape(kind)}" data-job="{escape(job.name)}"'))
    note = "A click on a head sorts by it. A click on a job shows it alone in the charts."
    return _section("Jobs", note, _table("jobs", [*heads, *contents.metrics], rows))


def failures(contents: Contents) -> str:
    """Why jobs failed or diverged, with the traceback to unfold."""
    items = []
    for job in contents.in_order():
        if job.status not in ("failed", "diverged"):
            continue
        reason = escape(f"{job.name} {job.status}: {job.error or 'no reason was written down'}")
        items.append(
            f"<details><summary>{reason}</summary>"
            f"<pre>{escape(_end(job.traceback))}</pre></details>"
            if job.traceback
            else f"<p>{reason}</p>"
        )
    return _section("What failed", "", "\n".join(items)) if items else ""


def seeds(contents: Contents, configurations: Sequence[Configuration]) -> str:
    """Mean ± standard deviation of each configuration."""
    if not configurations:
        return ""
    own = [each.name for each in contents.objectives]
    others = [name for name in contents.metrics if name not in own]
    rows = []
    for each in configurations:
        spreads = [each.objective(index) for index in range(len(own))]
        spreads += [each.metric(name) for name in others]
        count: Cell = (counted(each), float(len(each.finished)))
        rows.append(_row([(each.label, None), count, *map(_spread, spreads)]))
    note = "Sample standard deviation of the n jobs that finished."
    table = _table("seeds", ["configuration", "n", *own, *others], rows)
    return _section("Mean ± standard deviation over seeds", note, table)


def strategies(compared: Sequence[Comparison]) -> str:
    """What each strategy costs."""
    if not compared:
        return ""
    reference = compared[0].reference
    heads = ["strategy", "jobs", f"loss difference from {reference}", "steps compared"]
    heads += ["ms per step", f"times that of {reference}", "peak MiB"]
    rows = []
    for each in compared:
        milliseconds = None if each.seconds_per_step is None else 1000 * each.seconds_per_step
        cells: list[Cell] = [(each.strategy, None), (str(each.jobs), float(each.jobs))]
        cells += [_number(each.difference, ".1e"), _number(float(each.steps), ",.0f")]
        cells += [_number(milliseconds, ",.1f"), _number(each.ratio, ".2f")]
        rows.append(_row([*cells, _number(each.memory, ",.0f")]))
    note = (
        f"Each job beside the one with strategy={reference} that is otherwise equal. The loss "
        f"difference is the largest relative one in the first {FIRST_STEPS} steps, before rounding "
        "adds up; the time of a step is that of the run over its steps; memory is the largest peak."
    )
    if reference != "single":
        note += " No job ran under single, so the first strategy takes its place."
    return _section("Strategies", note, _table("strategy-table", heads, rows))


def _section(heading: str, note: str, inner: str) -> str:
    note = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="wide"><h2>{escape(heading)}</h2>{note}{inner}</section>'


def _table(name: str, heads: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(each)}</button></th>'
        for each in heads
    )
    return (
        f'<div class="scroll"><table id="{name}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(cells: Iterable[Cell], attributes: str = "") -> str:
    return f"<tr {attributes}>{''.join(map(_cell, cells))}</tr>\n"


def _cell(cell: Cell) -> str:
    text, number = cell
    if not text:
        return '<td class="missing">–</td>'
    if number is None:
        kind = ' class="long"' if len(text) > LONG else ""
        return f"<td{kind}>{escape(text)}</td>"
    return f'<td class="number" data-value="{number!r}">{escape(text)}</td>'


def _number(value: float | None, form: str) -> Cell:
    return MISSING if value is None else (format(value, form), value)


def _metric(contents: Contents, job: Job, name: str) -> Cell:
    for objective, value in zip(contents.objectives, job.values, strict=True):
        if objective.name == name:
            return _number(value, ".5g")
    if name in job.numbers and job.fact(name) is None:
        return (str(job.numbers[name]), None)
    return _number(job.fact(name), ".5g")


def _spread(spread: Spread | None) -> Cell:
    return MISSING if spread is None else (str(spread), spread.mean)


def _end(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{path} cannot be read"
    return text if len(text) <= LAST_LETTERS else "…\n" + text[-LAST_LETTERS:]
