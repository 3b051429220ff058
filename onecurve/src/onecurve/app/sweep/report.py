"""The report of a sweep: tables in the terminal, sweep.csv, and the page sweep.html.

The tables are of all jobs, of means over seeds, and of strategies compared with `single`.
"""

import argparse
import csv
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from ...errors import UserError, in_digits, plain_console, stop
from ..run.record import invocation
from .charts import charts_of
from .directory import TRACEBACK
from .results import COMPARED_STEPS, Job, SweepResults, label, read_sweep, short_keys, shown

PAGE = Path(__file__).with_name("page.html")
MOST_ROWS = 50  # in the terminal
STYLES = {"finished": "green", "failed": "red", "diverged": "red", "not run": "dim"}
NOTHING = "–"  # where a job has no number
STAR = "★ "  # what the name of the best job begins with
# Head and format of numbers of a job that are no metrics.
FACTS = {
    "global_step": ("steps", ",.0f"),
    "seconds": ("seconds", ".1f"),
    "samples_per_second": ("samples/s", ",.0f"),
    "peak_memory_mib": ("peak MiB", ",.0f"),
}
ROUNDING = 1e-5
"""Relative difference of losses from which on a note says how to tell rounding from an error."""
NOTE = (
    "Under AdamW in float32 rounding can grow, for example to 0.01 after 50 steps; "
    "trainer.precision=64-true tells it from an error."
)


@dataclass(frozen=True)
class Table:
    """Rows of texts below their heads.

    The first columns are `names`, the others numbers; the `least` columns are shown even where
    there is no room for them.
    """

    title: str
    heads: list[str]
    rows: list[list[str]]
    names: int = 1
    least: int = 0
    note: str = ""


def main() -> None:
    """Print the table of all jobs, and write sweep.csv and sweep.html."""
    parser = argparse.ArgumentParser(prog="onecurve report", description=main.__doc__)
    parser.add_argument("directory", nargs="*", type=Path, metavar="SWEEP_DIR")
    directories: list[Path] = parser.parse_args().directory
    try:
        if len(directories) != 1:
            given = "several were" if directories else "no SWEEP_DIR was"
            raise UserError(f"{given} given; onecurve report runs/DATE/TIME-sweep")
        write_report(directories[0])
    except UserError as error:
        stop(error)


def write_report(directory: Path) -> SweepResults:
    """Write sweep.csv and sweep.html about all jobs into the directory of a sweep or a run."""
    sweep = read_sweep(directory)
    jobs = job_table(sweep)
    tables = [table for table in (seed_means(sweep), compare_strategies(sweep)) if table]
    _write_csv(sweep, directory / "sweep.csv")
    _write_page(sweep, jobs, tables, directory / "sweep.html")
    console = plain_console()
    console.print(_for_terminal(jobs, console.width))
    failures = [_failure(job) for job in sweep.jobs if job.failed]
    for reason, file in failures[:MOST_ROWS]:
        where = f" (traceback: {invocation().short(file)})" if file.is_file() else ""
        console.print(Text(reason + where, style="red"), soft_wrap=True)
    for rows, which in ((jobs.rows, ""), (failures, " that failed or diverged")):
        if len(rows) > MOST_ROWS:
            console.print(f"and {len(rows) - MOST_ROWS} more{which} in sweep.csv")
    for table in tables:
        console.print(_for_terminal(table, console.width))
    files = [invocation().short(directory / f"sweep.{suffix}") for suffix in ("csv", "html")]
    print("Report:", ", ".join(files))
    return sweep


def _write_csv(sweep: SweepResults, path: Path) -> None:
    """A line for each job, best first, with everything that is known of it."""
    rows: list[dict[str, object]] = []
    for job in sweep.ranked:
        about = {"job": job.name, "directory": job.directory, "status": job.status}
        about |= {name: job.text(name) for name in ("error", "stopped")}
        objective = {sweep.objective.name: job.value} if sweep.objective.name else {}
        strategy = job.overrides.get("strategy") or job.text("strategy")
        row = {**about, **job.overrides, "strategy": strategy, **objective}
        # An override wins over a number of the same name, the objective over a last value.
        rows.append({**row, **dict(sorted(job.numbers.items())), **row})
    # Excel reads UTF-8 only where the file begins with a byte order mark.
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(itertools.chain(*rows))))
        writer.writeheader()
        writer.writerows(rows)


def _failure(job: Job) -> tuple[str, Path]:
    """Why a job failed, and the file with its traceback, which may be missing."""
    reason = job.text("error") or "no reason was recorded"
    return f"{job.name} {job.status}: {reason}", job.directory / TRACEBACK


def _for_terminal(table: Table, width: int) -> RichTable:
    """The columns for which there is room."""
    rows = table.rows[:MOST_ROWS]
    columns = zip(table.heads, *rows, strict=True)
    # Rich puts a space at either side of a column, and one between two.
    ends = itertools.accumulate(max(map(len, column)) + 3 for column in columns)
    count = max(table.least, sum(end < width for end in ends))
    shown_table = RichTable(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD)
    shown_table.caption, shown_table.caption_justify = Text(table.note), "left"
    for index, head in enumerate(table.heads[:count]):
        is_name = index < table.names
        shown_table.add_column(Text(head), justify="left" if is_name else "right", overflow="fold")
    for row in rows:
        cells = [Text(cell, style=STYLES.get(cell, "")) for cell in row[:count]]
        shown_table.add_row(*cells, style="bold" if row[0].startswith(STAR) else "")
    return shown_table


def _write_page(sweep: SweepResults, jobs: Table, tables: Sequence[Table], path: Path) -> None:
    """One file that opens from disk and fetches nothing."""
    charts = [
        figure.to_html(full_html=False, include_plotlyjs=False, div_id=name)
        for name, figure in charts_of(sweep).items()
    ]
    failures = []
    for reason, file in (_failure(job) for job in sweep.jobs if job.failed):
        frames = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else reason
        summary = f"<summary>{escape(reason)}</summary>"
        failures.append(f"<details>{summary}<pre>{escape(frames)}</pre></details>")
    text = Template(PAGE.read_text(encoding="utf-8")).substitute(
        title=escape(sweep.title),
        plotly=get_plotlyjs(),
        introduction=_introduction(sweep),
        jobs=_as_html(jobs),
        failures="\n".join(failures),
        tables="\n".join(map(_as_html, tables)),
        charts="\n".join(charts),
    )
    # Half a character, from a truncated file, cannot be encoded.
    path.write_text(text, encoding="utf-8", errors="replace")


def _introduction(sweep: SweepResults) -> str:
    name, mode = sweep.objective
    better = {"max": "more", "min": "less"}[mode]
    overrides = sweep.jobs[0].overrides.items()
    shared = [f"{key}={text}" for key, text in overrides if key not in sweep.keys]
    lines = [f"Judged by {name} ({better} is better)."] if name else []
    lines += [f"All jobs have {', '.join(shared)}."] if shared else []
    command = f"<pre>{escape(sweep.command)}</pre>" if sweep.command else ""
    return f"{command}<p>{escape(' '.join(lines))}</p>"


def _as_html(table: Table) -> str:
    heads = "".join(f"<th><button>{escape(head)}</button></th>" for head in table.heads)
    rows = []
    for row in table.rows:
        best = ' class="best"' if row[0].startswith(STAR) else ""
        rows.append(f"<tr{best}>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>")
    return (
        f"<h2>{escape(table.title)}</h2><table><thead><tr>{heads}</tr></thead>\n"
        f"<tbody>{chr(10).join(rows)}</tbody></table><p>{escape(table.note)}</p>"
    )


def job_table(sweep: SweepResults) -> Table:
    """All jobs, best first, with the numbers that at least one has."""
    *facts, memory = (name for name in FACTS if name not in sweep.metrics)
    facts = [name for name in facts if sweep.has(name)]
    numbers = [*facts, *filter(sweep.has, [*sweep.metrics, memory])]
    is_stopped = any(job.text("stopped") for job in sweep.jobs)
    heads = ["job", *short_keys(sweep.keys).values(), "status", *["stopped by"] * is_stopped]
    rows = []
    for job in sweep.ranked:
        name = STAR + job.name if job is sweep.best else job.name
        row = [name, *(shown(job.overrides.get(key, "")) for key in sweep.keys), job.status]
        row += [_stopped_by(job)] * is_stopped
        rows.append([*row, *(_cell(name, sweep.number(job, name)) for name in numbers)])
    counts = Counter(job.status for job in sweep.ranked).most_common()
    jobs = "1 job" if len(sweep.jobs) == 1 else f"{len(sweep.jobs)} jobs"
    return Table(
        title=f"Sweep, {jobs}: " + ", ".join(f"{count} {status}" for status, count in counts),
        heads=[*heads, *(FACTS[name][0] if name in FACTS else name for name in numbers)],
        rows=rows,
        names=len(heads),
        least=len(heads) + len(facts) + (sweep.objective.name in numbers),
    )


def _stopped_by(job: Job) -> str:
    """What ended a job before its last epoch: "early_stopping", "max_time", "SIGTERM"."""
    first = job.text("stopped").removeprefix("stopped by ").partition(" ")[0]
    return first.rstrip(":").rpartition(".")[2]


def _cell(name: str, value: float | None) -> str:
    if name in FACTS or value is None:
        return _format(value, FACTS[name][1] if name in FACTS else "")
    return f"{value:,.1f}" if 100 <= abs(value) < 1e6 else in_digits(value)


def _format(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def seed_means(sweep: SweepResults) -> Table | None:
    """Mean ± standard deviation of each configuration over its seeds, best mean first.

    Only jobs that finished count. None unless a configuration has several seeds.
    """
    keys = [key for key in sweep.keys if key != "seed"]
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in sweep.jobs:
        groups.setdefault(_values(job, keys), []).append(job)
    if "seed" not in sweep.keys or len(groups) == len(sweep.jobs):
        return None

    def mean_cost(jobs: list[Job]) -> float:
        costs = [sweep.cost(job) for job in jobs if job.complete]
        return statistics.fmean(costs) if costs else math.inf

    rows = []
    for jobs in sorted(groups.values(), key=mean_cost):
        finished = [job for job in jobs if job.finished]
        count = str(len(jobs)) if finished == jobs else f"{len(finished)} of {len(jobs)}"
        means = [_mean(sweep.number(job, name) for job in finished) for name in sweep.metrics]
        rows.append([label(jobs[0].overrides, keys) or "all jobs", count, *means])
    title, heads = "Mean ± standard deviation over seeds", ["configuration", "n", *sweep.metrics]
    return Table(title, heads, rows, least=3)


def _values(job: Job, keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(job.overrides.get(key, "") for key in keys)


def _mean(numbers: Iterable[float | None]) -> str:
    values = [value for value in numbers if value is not None and math.isfinite(value)]
    if not values:
        return NOTHING
    mean = f"{statistics.fmean(values):.4g}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2g}"


def compare_strategies(sweep: SweepResults) -> Table | None:
    """A row for each strategy, the reference first; None unless several trained.

    The columns are the largest relative difference of the training loss in the first steps from the
    job of the reference that is otherwise equal, the mean time of a step, with all that the run did
    beside its steps, alone and over that of the reference, and the largest peak memory.
    """
    groups: dict[str, list[Job]] = {}
    for job in sweep.jobs:
        groups.setdefault(_strategy(job), []).append(job)
    if "strategy" not in sweep.keys or len(groups) < 2:
        return None
    reference = "single" if "single" in groups else next(iter(groups))
    # A key of a strategy, such as strategy.schedule, belongs to it.
    others = [key for key in sweep.keys if key != "strategy" and not key.startswith("strategy.")]
    references = {_values(job, others): job for job in reversed(groups[reference])}
    rows, needs_note = [], False
    seconds = _seconds_per_step(groups[reference])
    for name in sorted(groups, key=lambda name: name != reference):
        jobs = groups[name]
        differences = [
            _differences(job, references.get(_values(job, others)), sweep.loss) for job in jobs
        ]
        difference = max(itertools.chain.from_iterable(differences), default=None)
        needs_note |= (difference or 0) > ROUNDING
        mean = _seconds_per_step(jobs)
        cells = (
            (difference, ".1e"),
            (max(map(len, differences)) or None, ",.0f"),
            (mean and 1000 * mean, ",.1f"),
            (mean and seconds and mean / seconds, ".2f"),
            (max(job.numbers.get("peak_memory_mib", 0) for job in jobs) or None, ",.0f"),
        )
        rows.append([name, *(_format(*cell) for cell in cells)])
    heads = ["strategy", "loss difference", "in steps", "ms per step"]
    heads += [f"× {reference}", "peak memory, MiB"]
    # The names, and what at least one strategy has.
    columns = [one for one in zip(heads, *rows, strict=True) if set(one[1:]) != {NOTHING}]
    if len(columns) == 1:
        return None
    heads, *rows = map(list, zip(*columns, strict=True))
    title = f"Strategies, compared with {reference}"
    return Table(title, heads, rows, least=len(heads), note=NOTE if needs_note else "")


def _strategy(job: Job) -> str:
    name = shown(job.overrides.get("strategy") or job.text("strategy"))
    keys = [key for key in job.overrides if key.lstrip("+").startswith("strategy.")]
    details = [f"{key.removeprefix('strategy.')}={job.overrides[key]}" for key in keys]
    return f"{name} ({', '.join(details)})" if details else name


def _seconds_per_step(jobs: Iterable[Job]) -> float | None:
    """The mean of all jobs; None if none has finished a step."""
    facts = [(job.numbers.get("seconds"), job.numbers.get("global_step")) for job in jobs]
    means = [seconds / steps for seconds, steps in facts if seconds and steps]
    return statistics.fmean(means) if means else None


def _differences(job: Job, other: Job | None, loss: str) -> list[float]:
    """The relative differences of the training loss in the first steps, where they are finite."""
    theirs = dict(other.curves[loss]) if other else {}
    shared = [(value, theirs[step]) for step, value in job.curves[loss] if step in theirs]
    relative = [abs(a - b) / max(abs(b), 1e-12) for a, b in shared[:COMPARED_STEPS]]
    return [value for value in relative if math.isfinite(value)]
