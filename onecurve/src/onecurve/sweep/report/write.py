"""The one way in: read the jobs, write the files, print the tables."""

from collections.abc import Sequence
from pathlib import Path

from ...run.to_type import typed_here
from .job_results import Job
from .page import write_page
from .seed_means import seed_means
from .spreadsheet import write_spreadsheet
from .strategy_comparison import compare_strategies
from .sweep_results import read_sweeps
from .terminal import show


def write(directories: Sequence[Path], to: Path) -> list[Job]:
    """Report on all jobs of some directories.

    Args:
        directories: Sweep directories, whose children are jobs; or run directories.
        to: The directory that gets sweep.csv and sweep.html.

    Returns:
        The jobs, best first.

    Raises:
        UserError: A directory is not there, or has no job.
    """
    sweep = read_sweeps(directories)
    tables = [table for table in (seed_means(sweep), compare_strategies(sweep)) if table]
    to.mkdir(parents=True, exist_ok=True)
    write_spreadsheet(sweep, to / "sweep.csv")
    write_page(sweep, tables, to / "sweep.html")
    show(sweep, tables)
    print(
        "Report:", ", ".join(typed_here().short(to / f"sweep.{kind}") for kind in ("csv", "html"))
    )
    return sweep.ranked
