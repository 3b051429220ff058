"""The types of a run's numbers."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch


class Precision(NamedTuple):
    """The types of a run, by `trainer.precision`."""

    stored: torch.dtype
    """Of parameters, gradients and optimizer state."""
    low: torch.dtype | None
    """What autocast computes in; None without it."""

    @classmethod
    def named(cls, name: str) -> "Precision":
        """That of a value of `trainer.precision`."""
        bits, _, kind = str(name).partition("-")
        types = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64}
        dtype = types.get(bits, torch.float32)
        return cls(torch.float32, dtype) if kind == "mixed" else cls(dtype, None)

    def context(self) -> AbstractContextManager[Any]:
        """What is entered around a forward pass."""
        if self.low is None:
            return nullcontext()
        # Of the CPU, whose fake tensors stand for any.
        return torch.autocast("cpu", torch.bfloat16)
