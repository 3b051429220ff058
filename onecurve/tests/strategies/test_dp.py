"""strategy=dp: batches of any kind are split at `forward`, and outputs joined."""

from typing import Any

import pytest
import torch
from conftest import FLOAT64, ROUNDING, Cli, column, largest_difference
from several_fits import Small, quiet_trainer
from several_fits import data as small_data
from small.task import Batch, Classification
from torch import Tensor, nn

import onecurve

# 655 training samples: two batches of 327 and one of a single sample.
ONE_LEFT = ("data.samples=832", "data.batch_size=327")


class Twice(Classification):
    """Calls its network twice a step, and asserts that each call got a part of the batch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sizes: list[int] = []
        self.network.register_forward_hook(lambda *call: self.sizes.append(len(call[2])))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.sizes.clear()
        loss = super().training_step(batch, batch_idx) + self(batch[0]).square().mean()
        assert self.sizes == {327: [109] * 6, 1: [1] * 2}[len(batch[0])]
        return loss


class OnTheWhole(Twice):
    """The same task for `single`: no part, no assertion."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = Classification.training_step(self, batch, batch_idx)
        return loss + self(batch[0]).square().mean()


class Number(Classification):
    """Its forward returns one number for the whole batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).mean()


@pytest.mark.compares
def test_every_call_of_a_step_is_split(train: Cli) -> None:
    same = (*ONE_LEFT, FLOAT64)
    single = train(*same, "task._target_=test_dp.OnTheWhole")
    dp = train(*same, "task._target_=test_dp.Twice", "strategy=dp", "trainer.devices=3")
    curves = [column(outcome.run, "train/loss") for outcome in (single, dp)]
    assert len(curves[0]) == 6
    assert largest_difference(*curves) <= ROUNDING


def test_a_scalar_output_is_rejected(cli: Cli) -> None:
    outcome = cli(
        "train.py", "model=mlp", "data.image_size=8", "logger=csv", "callbacks=[]",
        "strategy=dp", "task._target_=test_dp.Number",
    )  # fmt: skip
    assert outcome.status == 2
    assert "strategy=dp: forward returned a number" in outcome.err


class Counts(Small):
    """Keeps the mean of its outputs, of the full batch, and counts calls of `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(()))
        self.register_buffer("calls", torch.zeros(()))
        self.norm = nn.BatchNorm1d(2)

    def forward(self, *args: Any) -> Any:
        self.calls += 1
        return self.norm(super().forward(*args))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.center.copy_(loss.detach())  # type: ignore[operator]
        return loss


def test_buffers_that_differ_are_those_that_a_part_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quiet_trainer(onecurve.DP(), 2, max_steps=1).fit(Counts(), small_data())
    statistics, calls = (
        line for line in capsys.readouterr().err.splitlines() if "will differ" in line
    )
    assert "norm.running_mean, norm.running_var, norm.num_batches_tracked will" in statistics
    assert "will differ from strategy=Single(), as BatchNorm computes them" in statistics
    assert "strategy=dp: calls will differ from strategy=Single(), as forward" in calls
