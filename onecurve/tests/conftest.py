"""Runs the commands of a small project of the tests' own, `project/`."""

import os
import pickle
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from onecurve.torch_versions import too_old

ROOT = Path(__file__).parent / "project"
# The library, the project, what tests share, gpu_check, and the rooms of tests, whose classes runs
# name: for this process and those it starts.
TESTS, LIBRARY = ROOT.parent, ROOT.parents[1]
ROOMS = sorted({file.parent for file in TESTS.rglob("test_*.py")})
IMPORTED = [
    str(folder)
    for folder in (
        LIBRARY / "src", ROOT, TESTS, TESTS / "harness", LIBRARY.parent / "benchmarks", *ROOMS
    )
]  # fmt: skip
sys.path[:] = [*IMPORTED, *(path for path in sys.path if path not in IMPORTED)]
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*IMPORTED, *filter(None, [os.environ.get("PYTHONPATH")])]
)
# Else lines come out at once whoever prints them.
os.environ.pop("PYTHONUNBUFFERED", None)

import warm_ranks  # noqa: E402
from processes import Command, end  # noqa: E402

from onecurve.app import one_run  # noqa: E402
from onecurve.app.command import claim  # noqa: E402
from onecurve.launch import agent  # noqa: E402
from onecurve.launch.context import RunContext  # noqa: E402
from onecurve.testing.runs import Cli, Outcome, column, largest_difference, run_directories  # noqa: E402

__all__ = ["Cli", "Outcome", "column", "largest_difference", "run_directories"]

pytest_plugins = ["onecurve.testing.fixtures"]


@pytest.fixture(autouse=True)
def _clean_after_each_run() -> Iterator[None]:
    """A run leaves no variables of ranks to the next test, and no process group."""
    ranks = re.compile("(RANK|(LOCAL|NODE|WORLD|MASTER|SLURM|TORCHELASTIC|PL)_)")
    before = {name: value for name, value in os.environ.items() if ranks.match(name)}
    yield
    assert {name: value for name, value in os.environ.items() if ranks.match(name)} == before
    assert not torch.distributed.is_initialized()


# A network and data that train in a moment; added before what a test asks for.
TINY = (
    "model=mlp",
    "data=few",
    "callbacks=[checkpoint]",
    "logger=csv",
    "trainer.max_epochs=2",
    "data.batch_size=64",
)
EPOCH = 11
"""Its steps: ten batches, and one of 17."""

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
# Points of a mesh that none of those is: layers are cut within. Four ranks, if the axes are two.
MESHES = {
    "tensor": ("strategy=tensor",),
    "shard x tensor": ("strategy=mesh", "strategy.tensor=2", "trainer.devices=4"),
    "pipeline x tensor": (
        "strategy=mesh",
        "strategy.pipeline=2",
        "strategy.tensor=2",
        "trainer.devices=4",
    ),
}
ALL = {**STRATEGIES, **MESHES}
# What this torch has of schedules that split the backward pass, the most involved one.
ZBV = "interleaved_zero_bubble" if too_old("strategy.schedule=zbv") else "zbv"
PASSED_ON = "strategy=pipeline whose stages pass on what has no gradient"


def one_of_a_kind(cases: Iterable[Any], kept: Container[Any]) -> list[Any]:
    """The cases of a test, of which `make test` runs those that are kept; the others are long."""
    return [
        case
        if case in kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
        for case in cases
    ]


@pytest.fixture(scope="session")
def scripts() -> Path:
    """Where the commands of these tests are."""
    return ROOT


Shared = Callable[[str, Callable[[], Any]], Any]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """What one process of the tests computes, and all of them read: ``shared(name, compute)``."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers

    def read(name: str, compute: Callable[[], Any]) -> Any:
        file = folder / f"{name}.pickle"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                file.write_bytes(pickle.dumps(compute()))
        return pickle.loads(file.read_bytes())

    return read


@pytest.fixture
def warm(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """As `cli`, for a command that must succeed, whose ranks are warm."""

    def run(*arguments: str) -> Outcome:
        with monkeypatch.context() as patch:
            patch.setattr(agent, "start_ranks", warm_ranks.start_ranks)
            outcome = cli(*arguments)
        assert outcome.status == 0, outcome.err
        return outcome

    return run


Refused = Callable[..., str]


@pytest.fixture
def refused(cli: Cli) -> Refused:
    """The one line with which a command must be rejected.

    It leaves nothing, and prints no more than that it starts.
    """

    def run(*arguments: str) -> str:
        outcome = cli(*arguments)
        assert (outcome.status, outcome.runs) == (2, []), outcome.err
        assert re.fullmatch(r"(starting \d process(es)? \.\.\.\n)?", outcome.out)
        (line,) = outcome.err.splitlines()
        return line

    return run


@pytest.fixture
def train(warm: Cli) -> Cli:
    """A short training run that must succeed: ``train("strategy=ddp")``."""
    return partial(warm, "train.py", *TINY)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start a training run in the test's folder; what is left of it in the end is killed."""
    commands: list[Command] = []

    def run(*arguments: str, **options: Any) -> Command:
        commands.append(Command(tmp_path, "train.py", *arguments, **options))
        return commands[-1]

    yield run
    for command in commands:
        end(command)


ACCEPTED: set[tuple[str, ...]] = set()


@pytest.fixture
def is_accepted(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Whether a command would begin to train, as one that a refusal proposes must."""

    def run(*words: str) -> bool:
        if words not in ACCEPTED:
            with monkeypatch.context() as patch:
                patch.setattr(one_run, "start", lambda *_: ACCEPTED.add(words) or {})
                # Not in a run directory.
                alone = RunContext(tmp_path / "alone")
                patch.setattr(claim, "claim", lambda _: alone)
                # Nor is what was composed written to files.
                cli("train.py", *words, "hydra.output_subdir=null")
        return words in ACCEPTED

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


@pytest.fixture
def checkpoint_of(trained: Cli, tmp_path: Path) -> Callable[..., Path]:
    """The checkpoint of a short run, as if it were of another task, or of other data."""

    def make(data: str = "small.digits.Digits", **task: Any) -> Path:
        run = trained("strategy=single").run
        content = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
        content["config"]["task"].update(task)
        content["config"]["data"]["_target_"] = data
        file = tmp_path / "jürgen's [1], (x).ckpt"  # which needs no quotes of Hydra
        torch.save(content, file)
        return file

    return make
