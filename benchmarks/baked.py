"""Runs `train.py` of the project in build/, again and again in one process.

As in the project's own tests, only the start of Python is saved: torch is imported once, and ranks
are forked from one warm server.
"""

import csv
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hydra.core.global_hydra import GlobalHydra

# Runs lie where a benchmark stands, here and in what it starts.
os.environ["PROJECT_ROOT"] = "."
TEMPLATE = Path(__file__).resolve().parent.parent
PROJECT = TEMPLATE / "build" / "my-project"
LIBRARY = TEMPLATE / "onecurve"


@contextmanager
def folder_for_runs() -> Iterator[Path]:
    """Work in an empty folder, where the library's test data and this folder can be imported."""
    before = os.getcwd()
    tests = LIBRARY / "tests"
    for importable in (tests, tests / "harness", tests / "parity", Path(__file__).parent):
        sys.path.insert(0, str(importable))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def train(*overrides: str) -> Path:
    """Run `python train.py` with overrides.

    Returns:
        The run directory.

    Raises:
        SystemExit: If it did not finish; what it said is above.
    """
    before = set(Path.cwd().glob("runs/*/*/metrics.json"))
    arguments, sys.argv = sys.argv, [str(PROJECT / "train.py"), *overrides]
    try:
        with output_to(os.devnull):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.argv = arguments
        GlobalHydra.instance().clear()
    (made,) = set(Path.cwd().glob("runs/*/*/metrics.json")) - before
    return made.parent


def column(run: Path, name: str) -> list[float]:
    """The values of one metric in a run's metrics.csv, in order."""
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def weights(run: Path) -> dict[str, Any]:
    """The network's weights at the end of a run."""
    checkpoint = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    state: dict[str, Any] = checkpoint["state_dict"]
    return state


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
