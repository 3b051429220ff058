"""Runs scripts in tests, and reads what their runs have logged."""

import json
import logging
import runpy
import sys
from collections.abc import Callable
from csv import DictReader
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from ..errors import PROJECT
from ..machine import unchanged_environment


@dataclass
class Outcome:
    """The exit status, output and run directories of a command."""

    status: int
    out: str
    err: str
    runs: list[Path]
    """Run directories that it created, oldest first."""

    @property
    def run(self) -> Path:
        """The one run directory."""
        assert len(self.runs) == 1, f"expected one run, got {self.runs}\n{self.out}\n{self.err}"
        return self.runs[0]

    @property
    def metrics(self) -> dict[str, Any]:
        """metrics.json of the one run."""
        content: dict[str, Any] = json.loads((self.run / "metrics.json").read_text())
        return content


Cli = Callable[..., Outcome]


def run_script(script: Path, *arguments: str) -> int:
    """Run a script in this process and the current folder, as a shell would; its exit status.

    A script named "onecurve" is the console script, in the project of that folder. This saves the
    start of a Python process: torch is imported once for all tests, and the ranks of a
    multi-process run are forked from one warm server.
    """
    typed, threads = sys.argv, torch.get_num_threads()
    handlers = logging.getLogger().handlers[:]
    sys.argv = [str(script), *arguments]
    try:
        if script.name == "onecurve":
            with unchanged_environment((PROJECT,), {PROJECT: str(script.parent)}):
                runpy.run_module("onecurve", run_name="__main__")
        else:
            runpy.run_path(str(script), run_name="__main__")
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    finally:
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = None
        # Hydra's handlers write to this test's stdout, which is closed when the next test runs.
        logging.getLogger().handlers[:] = handlers
        torch.set_num_threads(threads)
        sys.argv = typed


def run_directories(folder: Path) -> list[Path]:
    """All run directories below a folder, oldest first."""
    return sorted(path.parent for path in folder.glob("runs/**/metrics.json"))


def column(run: Path, name: str) -> list[float]:
    """The values of one metric in a run's metrics.csv, in order."""
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row[name]) for row in DictReader(file) if row.get(name)]


def largest_difference(a: list[float], b: list[float]) -> float:
    """Largest relative difference of two curves, which must be equally long."""
    assert len(a) == len(b), f"curves of {len(a)} and {len(b)} values"
    assert a, "curves without a value"
    return max(abs(x - y) / max(abs(x), 1e-12) for x, y in zip(a, b, strict=True))
