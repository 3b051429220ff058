"""The tables in the terminal."""

import itertools
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ...plain_console import plain_console
from ...run.to_type import typed_here
from ..directory import TRACEBACK
from .job_results import Job
from .sweep_results import SweepResults
from .tables import STAR, Table, job_table

MOST_ROWS = 50
MOST_FAILURES = 10
STYLES = {"finished": "green", "failed": "red", "diverged": "red", "not run": "dim"}


def show(sweep: SweepResults, tables: Sequence[Table]) -> None:
    """Print the jobs, then what failed, then other tables."""
    console = plain_console()
    jobs = job_table(sweep)
    if _columns_that_fit(jobs, console.width) < jobs.least:
        jobs = job_table(sweep, together=True)
    console.print(_drawn(jobs, console.width))
    if len(jobs.rows) > MOST_ROWS:
        console.print(f"and {len(jobs.rows) - MOST_ROWS} more in sweep.csv")
    _show_failures(console, [job for job in sweep.jobs if job.failed])
    for table in tables:
        console.print(_drawn(table, console.width))


def _show_failures(console: Console, jobs: Sequence[Job]) -> None:
    for job in jobs[:MOST_FAILURES]:
        line = f"{job.name} {job.status}: {job.error or 'no reason was written down'}"
        traceback = job.directory / TRACEBACK
        if traceback.is_file():
            line += f" (traceback: {typed_here().short(traceback)})"
        console.print(Text(line, style="red"), soft_wrap=True)
    if len(jobs) > MOST_FAILURES:
        console.print(f"and {len(jobs) - MOST_FAILURES} more that failed or diverged, in sweep.csv")


def _columns_that_fit(table: Table, width: int) -> int:
    columns = zip(table.heads, *table.rows[:MOST_ROWS], strict=True)
    # Rich puts a space at either side of a column, and one between two.
    ends = itertools.accumulate((max(map(len, column)) + 3 for column in columns), initial=1)
    return sum(end <= width for end in ends) - 1


def _drawn(table: Table, width: int) -> RichTable:
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
