"""Impossible meshes are rejected in one line, before torch is imported."""

from collections.abc import Callable

import pytest
from alternatives import followed
from conftest import ZBV, Cli

# What is typed after strategy=mesh: what the line must say.
MISTAKES = {
    "strategy.pipeline=3": [
        "strategy.pipeline=3: a multiple of 3 ranks are needed, but there are 2",
        "use strategy.pipeline=2, or trainer.devices=3",
    ],
    "strategy.pipeline=2 strategy.shard=2": [
        "strategy.pipeline=2 strategy.shard=2: 4 ranks are needed, but there are 2",
        "use strategy.shard=1, or trainer.devices=4",
    ],
    "strategy.shard=1 strategy.replicate=2 trainer.devices=4": [
        "strategy.replicate=2: 2 ranks are needed, but there are 4",
        "use strategy.shard=auto",
    ],
    "strategy.tensor=0": ["strategy.tensor=0", "a whole number from 1"],
    "strategy.shard=2 data.batch_size=1": ["data.batch_size=1", "2 ranks"],
    "strategy.pipeline=2 strategy.microbatches=99": ["strategy.microbatches=99", "32 samples"],
    f"strategy.pipeline=2 trainer.devices=4 strategy.schedule={ZBV} "
    "strategy.reshard_after_forward=true": [
        "strategy.reshard_after_forward=true",
        "use strategy.reshard_after_forward=false, or strategy.schedule=1f1b",
    ],
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_an_impossible_mesh_is_rejected_in_one_line(
    cli: Cli, is_accepted: Callable[..., bool], typed: str
) -> None:
    words = ["strategy=mesh", *typed.split()]
    outcome = cli("train.py", *words)
    assert outcome.status == 2
    (line,) = outcome.err.strip().splitlines()
    assert all(part in line for part in MISTAKES[typed]), line
    assert not outcome.runs
    for command in followed(line, words):
        assert is_accepted(*command), (line, command)


@pytest.mark.parametrize(
    "typed", ["strategy.pipeline=2", "strategy.replicate=2", "strategy.shard=auto"]
)
def test_one_axis_may_take_all_ranks(cli: Cli, typed: str) -> None:
    outcome = cli("train.py", "strategy=mesh", typed, "--cfg", "job")
    assert outcome.status == 0
