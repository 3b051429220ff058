"""Runs the project's own commands, in this process, as a shell would.

Only the start of a Python process is saved: torch is imported once for all tests, and the ranks of
a multi-process run are forked from one warm server.
"""

import json
import logging
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from csv import DictReader
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra

ROOT = Path(__file__).parent / "project"
# The engine, the project, the classes of tests: for this process and those that it starts.
IMPORTED = [str(folder) for folder in (ROOT.parents[1] / "src", ROOT, ROOT.parent)]
sys.path[:] = [*IMPORTED, *(path for path in sys.path if path not in IMPORTED)]
os.environ["PYTHONPATH"] = os.pathsep.join([*IMPORTED, os.environ.get("PYTHONPATH", "")])

import warm_ranks  # noqa: E402

from onecurve.launch import agent  # noqa: E402

# A network and data that train in a moment; added before what a test asks for.
TINY = (
    "model=mlp",
    "data.image_size=8",
    "callbacks=[checkpoint]",
    "logger=csv",
    "trainer.max_epochs=2",
    "data.batch_size=64",
)

# What is compared is computed in float64: two orders of a sum are 1e-15 apart there, and more than
# ROUNDING in the end is an error. In float32 it need not be one: AdamW divides a gradient that is
# zero but for rounding by its own size, and moves the weight as far as any other. Which gradients
# are such is up to the kernels of the processor.
FLOAT64 = "trainer.precision=64-true"
ROUNDING = 1e-11

# How each strategy is asked for; those with ranks get two without a GPU.
STRATEGIES = {
    "single": ("strategy=single",),
    "dp": ("strategy=dp", "trainer.devices=2"),
    "ddp": ("strategy=ddp",),
    "fsdp": ("strategy=fsdp",),
    "pipeline": ("strategy=pipeline",),
}
# Several stages a rank.
INTERLEAVED = ("strategy=pipeline", "strategy.schedule=interleaved_1f1b")


@dataclass
class Outcome:
    """What a command left behind."""

    status: int
    out: str
    err: str
    runs: list[Path]
    """Run directories that it made, oldest first."""

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


def _told_about_ranks() -> dict[str, str]:
    names = ("RANK", "LOCAL_", "NODE_", "WORLD_", "MASTER_", "SLURM_", "TORCHELASTIC_", "PL_")
    return {name: value for name, value in os.environ.items() if name.startswith(names)}


@pytest.fixture(autouse=True)
def _nothing_of_a_run_stays() -> Iterator[None]:
    """What a run tells its ranks must not reach the run after it in this process."""
    before = _told_about_ranks()
    yield
    assert _told_about_ranks() == before
    assert not torch.distributed.is_initialized()


@pytest.fixture(autouse=True)
def _composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra composes all twice, first to look for `hydra.mode`, which no test here sets.

    Commands in processes of their own are left as they are.
    """
    monkeypatch.setattr(Hydra, "get_mode", lambda *_, **__: None)


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    """Run a script with arguments in an empty folder: ``cli("train.py", "strategy=ddp")``."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    handlers = logging.getLogger().handlers[:]

    def run(script: str, *arguments: str) -> Outcome:
        folder = Path.cwd()
        before = set(run_directories(folder))
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", [str(ROOT / script), *arguments])
        status = 0
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            GlobalHydra.instance().clear()
        out, err = capfd.readouterr()
        made = [path for path in run_directories(folder) if path not in before]
        return Outcome(status, out, err, made)

    yield run
    torch.set_num_threads(threads)
    # Hydra's handlers write to this test's stdout, which is closed when the next test runs.
    logging.getLogger().handlers[:] = handlers


@pytest.fixture
def train(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A short training run that must succeed: ``train("strategy=ddp")``. Its ranks are warm."""

    def run(*arguments: str) -> Outcome:
        with monkeypatch.context() as patch:
            patch.setattr(agent, "start_ranks", warm_ranks.start_ranks)
            outcome = cli("train.py", *TINY, *arguments)
        assert outcome.status == 0, outcome.err
        return outcome

    return run


MADE: dict[tuple[str, ...], Outcome] = {}


@pytest.fixture
def trained(
    train: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Cli:
    """As `train`, but a command runs once for all tests of this process, which may only read it."""

    def run(*arguments: str) -> Outcome:
        if arguments not in MADE:
            with monkeypatch.context() as patch:
                patch.chdir(tmp_path_factory.mktemp("trained"))
                MADE[arguments] = train(*arguments)
        return MADE[arguments]

    return run


def run_directories(folder: Path) -> list[Path]:
    """All run directories below a folder, oldest first."""
    return sorted(path.parent for path in folder.glob("runs/**/metrics.json"))


def jobs_of(sweep: Path) -> int:
    """How many jobs the command of a sweep has asked for."""
    record = yaml.safe_load((sweep / "sweep.yaml").read_text())
    trials = re.search(r"sweep\.trials=(\d+)", record["command"])
    return int(trials[1]) if trials else len(record["jobs"])


def column(run: Path, name: str) -> list[float]:
    """The values of one metric in a run's metrics.csv, in order."""
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row[name]) for row in DictReader(file) if row.get(name)]


def largest_difference(a: list[float], b: list[float]) -> float:
    """Largest relative difference of two curves, which must be equally long."""
    assert len(a) == len(b)
    assert a
    return max(abs(x - y) / max(abs(x), 1e-12) for x, y in zip(a, b, strict=True))
