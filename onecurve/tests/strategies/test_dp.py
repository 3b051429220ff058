"""strategy=dp: batches of any kind are split at `forward`, and outputs joined."""

from typing import Any

import pytest
import torch
from several_fits import Small, quiet_trainer
from several_fits import data as small_data
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import onecurve
from onecurve.errors import UserError


class Twice(Small):
    """Calls its network twice a step, and notes how many rows each call got."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.net.register_forward_hook(lambda *call: self.sizes.append(len(call[2])))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) + self(batch[0]).square().mean()


def test_every_call_of_a_step_is_split() -> None:
    """Of 7 rows over 3 devices, and of a single one."""
    task = Twice()
    rows = TensorDataset(torch.ones(8, 6), torch.ones(8, 2))
    quiet_trainer(onecurve.DP(), 3, max_epochs=1).fit(task, DataLoader(rows, 7))
    assert task.sizes == [3, 2, 2, 3, 2, 2, 1, 1]


class Number(Small):
    """Its forward returns one number for the whole batch."""

    def forward(self, inputs: Tensor) -> Any:
        return super().forward(inputs).mean()


def test_a_scalar_output_is_rejected() -> None:
    with pytest.raises(UserError, match="forward returned a number for the whole batch; return"):
        quiet_trainer(onecurve.DP(), 2, max_steps=1).fit(Number(), small_data())


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
