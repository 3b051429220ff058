"""The first and the last layer of a network for a table: remove its units, and restore them."""

import torch
from torch import Tensor, nn


class Units(nn.Module):
    """Mean and standard deviation of columns, from `measure`; 0 and 1 before.

    They are buffers, so a network from a checkpoint takes rows in the units of the table.

    Args:
        columns: how many.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("std", torch.ones(columns))

    def measure(self, rows: Tensor) -> None:
        """Compute them from rows (N, columns); a constant column keeps its unit."""
        # Rounded, so that they are the same numbers in a task of any precision.
        std, mean = (value.float() for value in torch.std_mean(rows.double(), dim=0))
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > 0, std, 1.0))


class Standardize(Units):
    """Rows (N, F) as multiples of the standard deviation from the mean."""

    def forward(self, rows: Tensor) -> Tensor:
        """Without units."""
        return (rows - self.mean) / self.std


class Restore(Units):
    """Outputs (N, 1) of a network as predictions (N,) in the target's units."""

    def forward(self, outputs: Tensor) -> Tensor:
        """With units."""
        return outputs.squeeze(-1) * self.std + self.mean
