"""strategy=pipeline: numbers of micro-batches, what it prints, names in a checkpoint.

Which modules it trains, and which it rejects, are rows of tests/parity/cases.py.
"""

from pathlib import Path

import pytest
import torch
from conftest import TINY
from processes import Command
from several_fits import Saves, fits_in_ranks
from stages import Tied

import onecurve
import onecurve.strategies.pipeline.limits as limits


def test_a_split_is_one_that_the_schedule_takes() -> None:
    """For every size of batch: equal parts, and a schedule that takes their number."""
    for name in limits.SCHEDULES:
        for ranks in (1, 2, 3, 4):
            for size in range(1, 40):
                schedule, count = limits.split(name, 4, ranks, size)
                assert size % count == 0
                assert limits.takes(schedule, count, ranks)
                assert schedule in (name, "gpipe")
                wanted = limits.nearest(name, size, ranks, range(1, 41))
                assert wanted is not None
                assert limits.takes(name, wanted, ranks)
    assert limits.split("1f1b", 4, 2, 50) == ("1f1b", 5)
    assert limits.split("1f1b", 4, 2, 64) == ("1f1b", 4)
    assert limits.split("1f1b", 4, 2, 47) == ("gpipe", 1)


@pytest.mark.slow
def test_a_run_says_how_the_network_is_cut(tmp_path: Path) -> None:
    """A line for each stage, and the idle time to expect."""
    # In a process of its own: what ranks print goes where their server's output went.
    options = ("strategy=pipeline", "trainer.max_epochs=1")
    out, _ = Command(tmp_path, "train.py", *TINY, *options).communicate()
    for words in (
        "network.flatten … network.relu1 (3)",
        "33,280",
        "imbalance 1.",
        "4 micro-batches of 16",
    ):
        assert words in out
    assert "predicted bubble" in out


def test_what_has_several_names_is_saved_under_all(tmp_path: Path) -> None:
    path = tmp_path / "end.ckpt"
    saves = {"callbacks": [Saves(path)], "max_epochs": 1}
    fits_in_ranks({"": (Tied, onecurve.Pipeline(timeout_seconds=20), saves)})
    state = torch.load(path, weights_only=True)["state_dict"]
    for layer in ("net.0", "net.2", "last"):
        assert torch.equal(state[f"{layer}.first.weight"], state[f"{layer}.second.weight"])
    assert torch.equal(state["weight"], state["net.2.first.weight"])
