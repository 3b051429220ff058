"""strategy=dp: batches of any kind are split at `forward`, and outputs joined."""

from typing import Any

import pytest
import torch
from several_fits import Small, quiet_trainer
from several_fits import data as small_data
from torch import Tensor
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
