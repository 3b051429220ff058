"""The report of sweeps: tables in the terminal, sweep.csv, and the page sweep.html."""

import argparse
import csv
import itertools
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from ..errors import UserError, stop
from ..plain_console import plain_console
from ..run.invocation import invocation
from .charts import charts_of
from .directory import TRACEBACK
from .results import Job, SweepResults, read_sweeps
from .tables import STAR, Table, compare_strategies, job_table, seed_means

PAGE = Path(__file__).with_name("page.html")
MOST_ROWS = 50
MOST_FAILURES = 10
LAST_LETTERS = 6000
"""Of a traceback on the page: its end says what happened."""
STYLES = {"finished": "green", "failed": "red", "diverged": "red", "not run": "dim"}
FIRST_COLUMNS = ("job", "directory", "status", "error", "stopped")


def main() -> None:
    """Print the table of all jobs, and write sweep.csv and sweep.html."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directories", nargs="*", type=Path, metavar="SWEEP_DIR")
    parser.add_argument(
        "--to", type=Path, help="where the files go (default: SWEEP_DIR; of several, here)"
    )
    arguments = parser.parse_args()
    directories: list[Path] = arguments.directories
    try:
        if not directories:
            raise UserError("no SWEEP_DIR was given; python report.py runs/DATE/TIME-sweep")
        here = directories[0] if len(directories) == 1 else Path()
        write_report(directories, arguments.to or here)
    except UserError as error:
        stop(error)


def write_report(directories: Sequence[Path], to: Path) -> list[Job]:
    """Report on all jobs of some sweep or run directories.

    Args:
        directories: Sweep directories, whose children are jobs; or run directories.
        to: The directory that gets sweep.csv and sweep.html.

    Returns:
        The jobs, best first.

    Raises:
        UserError: If a directory does not exist, or has no job.
    """
    sweep = read_sweeps(directories)
    tables = [table for table in (seed_means(sweep), compare_strategies(sweep)) if table]
    to.mkdir(parents=True, exist_ok=True)
    _write_csv(sweep, to / "sweep.csv")
    _write_page(sweep, tables, to / "sweep.html")
    _print(sweep, tables)
    files = [invocation().short(to / f"sweep.{suffix}") for suffix in ("csv", "html")]
    print("Report:", ", ".join(files))
    return sweep.ranked


def _write_csv(sweep: SweepResults, path: Path) -> None:
    """A line for each job, best first, with everything that is known of it."""
    keys = dict.fromkeys(key for job in sweep.ranked for key in job.overrides)
    objectives = [each.name for each in sweep.objectives]
    numbers = {name for job in sweep.jobs for name in job.numbers}
    others = sorted(numbers.difference(objectives, keys, FIRST_COLUMNS, ["strategy"]))
    columns = dict.fromkeys([*FIRST_COLUMNS, *keys, "strategy", *objectives, *others])
    # Excel reads UTF-8 only where the file begins with a byte order mark.
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        for job in sweep.ranked:
            own = (job.name, job.directory, job.status, job.error, job.stopped)
            # An override wins over a number of the same name, an objective over a last value.
            numbers_of_job = {**job.numbers, **job.values, "strategy": job.strategy}
            first = dict(zip(FIRST_COLUMNS, own, strict=True))
            writer.writerow({**numbers_of_job, **job.overrides, **first})


def _reason(job: Job) -> str:
    return f"{job.name} {job.status}: {job.error or 'no reason was recorded'}"


def _print(sweep: SweepResults, tables: Sequence[Table]) -> None:
    console = plain_console()
    jobs = job_table(sweep)
    if _columns_that_fit(jobs, console.width) < jobs.least:
        jobs = job_table(sweep, narrow=True)
    console.print(_for_terminal(jobs, console.width))
    if len(jobs.rows) > MOST_ROWS:
        console.print(f"and {len(jobs.rows) - MOST_ROWS} more in sweep.csv")
    failed = [job for job in sweep.jobs if job.failed]
    for job in failed[:MOST_FAILURES]:
        file = job.directory / TRACEBACK
        where = f" (traceback: {invocation().short(file)})" if file.is_file() else ""
        console.print(Text(_reason(job) + where, style="red"), soft_wrap=True)
    if more := failed[MOST_FAILURES:]:
        console.print(f"and {len(more)} more that failed or diverged, in sweep.csv")
    for table in tables:
        console.print(_for_terminal(table, console.width))


def _columns_that_fit(table: Table, width: int) -> int:
    columns = zip(table.heads, *table.rows[:MOST_ROWS], strict=True)
    # Rich puts a space at either side of a column, and one between two.
    ends = itertools.accumulate((max(map(len, column)) + 3 for column in columns), initial=1)
    return sum(end <= width for end in ends) - 1


def _for_terminal(table: Table, width: int) -> RichTable:
    count = max(table.least, _columns_that_fit(table, width))
    found = RichTable(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD)
    found.caption, found.caption_justify = Text(table.note), "left"
    for index, head in enumerate(table.heads[:count]):
        is_name = index < table.names
        found.add_column(Text(head), justify="left" if is_name else "right", overflow="fold")
    for row in table.rows[:MOST_ROWS]:
        cells = [Text(cell, style=STYLES.get(cell, "")) for cell in row[:count]]
        found.add_row(*cells, style="bold" if row[0].startswith(STAR) else "")
    return found


def _write_page(sweep: SweepResults, tables: Sequence[Table], path: Path) -> None:
    """One file that opens from disk and fetches nothing."""
    charts = [
        figure.to_html(full_html=False, include_plotlyjs=False, div_id=name)
        for name, figure in charts_of(sweep).items()
    ]
    text = Template(PAGE.read_text(encoding="utf-8")).substitute(
        title=escape(sweep.title),
        plotly=get_plotlyjs(),
        introduction=_introduction(sweep),
        jobs=_as_html(job_table(sweep)),
        failures="\n".join(_failure(job) for job in sweep.jobs if job.failed),
        tables="\n".join(map(_as_html, tables)),
        charts="\n".join(charts),
    )
    # Half a character, from a truncated file, cannot be encoded.
    path.write_text(text, encoding="utf-8", errors="replace")


def _introduction(sweep: SweepResults) -> str:
    better = {"max": "more", "min": "less"}
    judged = [
        f"{each.name} ({each.value} value, {better[each.mode]} is better)"
        for each in sweep.objectives
    ]
    overrides = sweep.jobs[0].overrides.items()
    shared = [f"{key}={text}" for key, text in overrides if key not in sweep.keys]
    lines = [f"Judged by {' and '.join(judged)}."] if judged else []
    lines += [f"All jobs have {', '.join(shared)}."] if shared else []
    commands = "".join(f"<pre>{escape(command)}</pre>" for command in sweep.commands)
    return f"{commands}<p>{escape(' '.join(lines))}</p>"


def _failure(job: Job) -> str:
    try:
        traceback = (job.directory / TRACEBACK).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"<p>{escape(_reason(job))}</p>"
    end = escape(traceback[-LAST_LETTERS:])
    return f"<details><summary>{escape(_reason(job))}</summary><pre>{end}</pre></details>"


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
