"""Linear layers: PyTorch's, and transformers' Conv1D (GPT-2), whose weight stands the other way."""

from typing import Any, TypeGuard

from torch import Tensor, nn
from torch.nn import functional as F


def is_linear(part: Any) -> TypeGuard[nn.Linear]:
    """Whether a module is one: parameters ``weight`` and, it may be, ``bias``."""
    return isinstance(part, nn.Linear) or is_transposed(part)


def is_transposed(part: Any) -> bool:
    """Whether its weight is (in, out)."""
    kind = type(part)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def holds_parameters(part: nn.Module) -> bool:
    """Whether a style means the module's own parameters, and not those of layers within."""
    return is_linear(part) or isinstance(part, nn.Embedding | nn.MultiheadAttention)


def out_features(part: nn.Linear) -> int:
    """How many numbers leave it."""
    return int(part.weight.shape[1 if is_transposed(part) else 0])


def in_features(part: nn.Linear) -> int:
    """How many numbers enter it."""
    return int(part.weight.shape[0 if is_transposed(part) else 1])


def dimension(part: nn.Module, of_inputs: bool) -> int:
    """Which dimension of the weight is that of the inputs, or of the outputs."""
    return int(of_inputs != is_transposed(part))


def linear(part: nn.Linear, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What it computes, with other parameters."""
    return F.linear(inputs, weight.T if is_transposed(part) else weight, bias)
