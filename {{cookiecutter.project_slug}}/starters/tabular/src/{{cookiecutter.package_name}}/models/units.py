"""The first and the last layer around a network of a table: from its units, and back to them."""

import torch
from torch import Tensor, nn


class Units(nn.Module):
    """Mean and standard deviation of columns, once `measure` has seen some; 0 and 1 until then.

    They are buffers: a checkpoint has them, and the network in it takes rows as they are.

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
        """Take them of rows (N, columns); a column that is constant keeps its unit."""
        std, mean = torch.std_mean(rows.double(), dim=0)
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
