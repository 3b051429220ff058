"""strategy=pipeline: which modules and numbers of micro-batches it rejects, and what it prints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, Cli
from processes import Command
from small.task import Classification
from torch import Tensor, nn

import onecurve.strategies.pipeline.limits as limits


class ParameterOutside(Classification):
    """Says what its layers are, and has a parameter beside them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * self.temperature

    def layers(self) -> list[nn.Module]:
        return list(self.network)


def test_a_parameter_beside_the_layers_is_one_line(cli: Cli, tmp_path: Path) -> None:
    own = ("strategy=pipeline", "task._target_=test_pipeline.ParameterOutside")
    outcome = cli("train.py", *TINY, "callbacks=[]", *own)
    assert outcome.status == 2, outcome.err
    assert outcome.err.startswith("error: strategy=pipeline: the parameter temperature")
    assert "none of its layers" in outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert list(tmp_path.iterdir()) == []


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
