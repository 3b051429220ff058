"""``parameter.data = value`` of sharded parameters, which PyTorch would ignore without a word.

The numbers of a DTensor are those of a tensor within it, and the assignment is to what is around
that one. So a weight that is bounded, or the weight of a teacher, by assignment would never change.
"""

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from .patching import replaced


def assignable_data() -> AbstractContextManager[None]:
    """Within the context, an assignment copies a value of the same shape and type."""
    return replaced(DTensor, "data", property(_data, _assign))


def _data(parameter: Any) -> Tensor:
    return Tensor.data.__get__(parameter)  # type: ignore[attr-defined, no-any-return]


def _assign(parameter: Any, value: Tensor) -> None:
    if (value.shape, value.dtype) == (parameter.shape, parameter.dtype):
        _data(parameter).copy_(value)
    else:
        Tensor.data.__set__(parameter, value)  # type: ignore[attr-defined]
