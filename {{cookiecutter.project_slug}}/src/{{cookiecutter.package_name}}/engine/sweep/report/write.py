"""The one way in: read the jobs, print the table, write the three files."""

from collections.abc import Sequence
from pathlib import Path

from .contents import gather
from .groups import over_seeds
from .jobs import Job
from .strategies import compare
from .table import show, show_files


def write(directories: Sequence[Path], to: Path) -> list[Job]:
    """Report on all jobs of some directories.

    Args:
        directories: Sweep directories, whose children are jobs; or run directories.
        to: The directory that gets sweep.csv, sweep.html and sweep.png.

    Returns:
        The jobs, best first.

    Raises:
        UserError: A directory is not there, or has no job.
    """
    contents = gather(directories)
    seeds, strategies = over_seeds(contents), compare(contents)
    show(contents, seeds, strategies)
    to.mkdir(parents=True, exist_ok=True)
    # After the table: the plotting libraries take a second to import.
    from . import figure, page, spreadsheet

    files = [to / "sweep.csv", to / "sweep.html", to / "sweep.png"]
    spreadsheet.write(contents, files[0])
    page.write(contents, seeds, strategies, files[1])
    figure.write(contents, files[2])
    show_files(files)
    return contents.jobs
