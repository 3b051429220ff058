"""What a user does not want can be deleted, folder by folder: here each optional part once.

In a copy of this distribution a part is taken away: its folder, its configurations, its lines in
the defaults, and the files of tests that are about it alone. There every other file of tests must
still be importable, and `test_smoke.py` must pass. To run all that remains, six times over, would
take hours; a case in another file that names the part (`strategy=pipeline` among all strategies)
would have to go with it as well.
"""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import one_of_a_kind
from processes import ENGINE, Command


class Part(NamedTuple):
    """What belongs to an optional part, and what is said where it is missed."""

    files: tuple[str, ...]
    """Files and folders, below the distribution."""
    tests: tuple[str, ...]
    """Files of tests that are about it alone."""
    typed: str
    """What asks for it."""
    refusal: str
    groups: tuple[str, ...] = ()
    """Groups whose lines leave the defaults lists."""


LIBRARY = "src/onecurve"
PROJECT = "tests/project"
SEARCH = (
    f"{LIBRARY}/sweep/search",
    f"{LIBRARY}/configs/hydra/sweeper",
    f"{LIBRARY}/configs/sweep/optuna.yaml",
    f"{LIBRARY}/configs/sweep/optuna_limits.py",
    f"{LIBRARY}/configs/sweep/pruner",
    f"{LIBRARY}/configs/sweep/sampler",
    "src/hydra_plugins/onecurve_search.py",
)
# It lays networks out along every axis.
PLANNER = (
    f"{LIBRARY}/planner",
    f"{LIBRARY}/configs/plan",
    f"{PROJECT}/plan.py",
    f"{PROJECT}/configs/plan.yaml",
)
OF_PLANNER = ("test_planner.py", "test_planner_bytes.py")
PARTS = {
    "pipeline": Part(
        (
            *PLANNER,
            f"{LIBRARY}/strategies/pipeline",
            f"{LIBRARY}/strategies/mesh/strategy.py",
            f"{LIBRARY}/strategies/mesh/strategy_refusals.py",
            f"{PROJECT}/configs/strategy/mesh.yaml",
            f"{PROJECT}/configs/strategy/pipeline.yaml",
        ),
        (
            *OF_PLANNER,
            "test_mesh_refusals.py",
            "test_partition.py",
            "test_pipeline.py",
            "test_pipeline_composition.py",
            "test_pipeline_gradients.py",
            "test_pipeline_hooks.py",
            "test_pipeline_loss.py",
            "test_pipeline_ties.py",
            "test_timeline.py",
        ),
        "strategy=pipeline",
        "strategy=pipeline: must be one of ddp, dp, fsdp, single, tensor, such as strategy=",
    ),
    "tensor": Part(
        (*PLANNER, f"{LIBRARY}/strategies/tensor", f"{PROJECT}/configs/strategy/tensor.yaml"),
        (*OF_PLANNER, "test_tensor_parity.py", "test_tensor_plan.py"),
        "strategy=mesh strategy.tensor=2",
        "strategy.tensor=2: the folder onecurve/strategies/tensor is not there; use strategy.",
    ),
    "sweep": Part(
        (*SEARCH, f"{LIBRARY}/sweep", f"{LIBRARY}/configs/sweep", f"{PROJECT}/report.py"),
        (
            "test_launchers.py",
            "test_report.py",
            "test_report_page.py",
            "test_search.py",
            "test_sweeps.py",
        ),
        "-m seed=1,2",
        "-m: this project has no sweeps",
        groups=("sweep", "sweep/launcher"),
    ),
    "search": Part(
        SEARCH,
        ("test_search.py",),
        "-m sweep=optuna seed=1,2",
        "sweep=optuna: must be one of grid, such as sweep=grid",
    ),
    "displays": Part(
        (
            f"{LIBRARY}/displays",
            f"{PROJECT}/configs/callbacks/tensorboard.yaml",
            f"{PROJECT}/configs/callbacks/wandb.yaml",
        ),
        ("test_displays.py",),
        "callbacks=[tensorboard]",
        "callbacks=tensorboard: must be one of batch_size_finder, checkpoint,",
    ),
    "averaging": Part(
        (
            f"{LIBRARY}/averaging",
            f"{PROJECT}/configs/callbacks/ema.yaml",
            f"{PROJECT}/configs/callbacks/swa.yaml",
        ),
        ("test_averaging.py",),
        "+callbacks=ema",
        "callbacks=ema: must be one of batch_size_finder, checkpoint,",
    ),
    "sharded": Part(
        (f"{LIBRARY}/checkpoint/sharded",),
        ("test_sharded_checkpoints.py",),
        "checkpoint.format=sharded",
        "checkpoint.format=sharded: the folder onecurve/checkpoint/sharded is not there; use",
    ),
    "nodes": Part(
        (f"{LIBRARY}/launch/nodes",),
        ("test_come_back.py", "test_joining.py", "test_nodes.py", "test_nodes_lost.py"),
        "strategy=ddp trainer.num_nodes=2 launch.rendezvous=localhost:29500",
        "trainer.num_nodes=2: the part that lets nodes meet, onecurve.launch.nodes, was taken away",
    ),
}


def without(part: Part, folder: Path) -> Path:
    """A copy of this distribution that lacks a part."""
    copy = folder / "engine"
    unread = shutil.ignore_patterns("__pycache__", "runs", ".*")
    for name in ("src", "tests"):
        shutil.copytree(ENGINE / name, copy / name, ignore=unread)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ENGINE / name, copy)
    for name in (*part.files, *(f"tests/{name}" for name in part.tests)):
        gone = copy / name
        if gone.is_dir():
            shutil.rmtree(gone)
        else:
            # What lay in a folder that is gone is gone.
            gone.unlink(missing_ok=not gone.parent.exists())
    for group in part.groups:
        for config in (copy / PROJECT / "configs").glob("*.yaml"):
            config.write_text(re.sub(rf"^  - {group}: .*\n", "", config.read_text(), flags=re.M))
    return copy


# Asserts as they are: to rewrite those of all files takes longer than to run three tests.
SMOKE = """
import sys

import pytest

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--assert=plain", "-k", "test_smoke"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", one_of_a_kind(PARTS, kept=["sweep"]))
def test_the_rest_runs_without_a_part(name: str, tmp_path: Path) -> None:
    copy = without(PARTS[name], tmp_path)
    (copy / "smoke.py").write_text(SMOKE)
    # All files are collected, and an import that fails ends it; those are run that the name fits.
    command = Command(copy, str(copy / "smoke.py"), distribution=copy, CUDA_VISIBLE_DEVICES="")
    out, err = command.communicate()
    assert command.returncode == 0, out[-4000:] + err[-2000:]
    assert re.search(r"\b3 passed(, 1 skipped)?, \d+ deselected", out), out[-2000:]


@pytest.mark.parametrize("name", PARTS)
def test_what_is_gone_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    part = PARTS[name]
    copy = without(part, tmp_path)
    folder = tmp_path / "here"
    folder.mkdir()
    typed = part.typed.split()
    command = Command(folder, "train.py", *typed, distribution=copy, CUDA_VISIBLE_DEVICES="")
    _, err = command.communicate()
    assert command.returncode in (1, 2)
    assert err.startswith(f"error: {part.refusal}"), err
    assert len(err.splitlines()) == 1, err
    assert list(folder.iterdir()) == []


def test_what_a_part_consists_of_is_there() -> None:
    """A file that is renamed would no longer be taken away."""
    for part in PARTS.values():
        for name in (*part.files, *(f"tests/{name}" for name in part.tests)):
            assert (ENGINE / name).exists(), name
