"""What benchmarks share: runs of `train.py` of the project in build/, ratios, and tables.

Runs are made again and again in one process, as in the project's own tests: torch is imported once,
and ranks are forked from one warm server.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onecurve.testing.runs import run_directories, run_script

# Runs lie where a benchmark stands, here and in what it starts.
os.environ["PROJECT_ROOT"] = "."
TEMPLATE = Path(__file__).resolve().parent.parent
PROJECT = TEMPLATE / "build" / "my-project"
TRAIN = PROJECT / "train.py"
# The library's test data and what its tests share, for this process and its ranks.
TESTS = TEMPLATE / "onecurve/tests"
sys.path += map(str, (TESTS, TESTS / "harness", Path(__file__).parent))


@contextmanager
def folder_for_runs() -> Iterator[Path]:
    """Work in an empty folder."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def train(*overrides: str) -> Path:
    """Run `python train.py` with overrides in this process.

    Returns:
        The run directory.

    Raises:
        SystemExit: If it did not finish; what it said is above.
    """
    before = set(run_directories(Path.cwd()))
    with output_to(os.devnull):
        status = run_script(TRAIN, *overrides)
    if status:
        sys.exit(status)
    (made,) = set(run_directories(Path.cwd())) - before
    return made


@contextmanager
def output_to(path: str) -> Iterator[None]:
    """Send the standard output of this process and its children to a file."""
    sys.stdout.flush()
    kept = os.dup(1)
    target = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(target, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(target)


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios pair by pair; what is paired was measured one after the other."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def print_head(*cells: object) -> None:
    """The first lines of a table in Markdown, as in RESULTS.md."""
    print_row(*cells)
    print_row(*["---"] * len(cells))


def print_row(*cells: object) -> None:
    """A line of it, at once."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
