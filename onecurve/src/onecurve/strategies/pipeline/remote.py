"""Tensors without data, which replace those of layers that another rank holds.

PyTorch leaves a tensor as it is where one without data is added to it in place. So a penalty that
is summed up by ``total += weight.abs().sum()``, or a teacher whose weights follow by
``mean.mul_(0.99).add_(weight, alpha=0.01)``, would lose the weights of other ranks silently.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ...compat.of_torch import DisableTorchFunctionSubclass, tensor_leaves, tree_map_only
from ...compat.patching import replaced


class Remote(Tensor):
    """A tensor on the meta device, and so is what is computed from it; in-place use is rejected."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        changed = [args[:1] if _works_in_place(func) else None, kwargs.get("out")]
        if not all(tensor.is_meta for tensor in tensor_leaves(changed)):
            raise RuntimeError(f"{func.__name__} of a tensor on the meta device: no data")
        with DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        return tree_map_only(Tensor, _as_remote, result)


def _works_in_place(func: Callable[..., Any]) -> bool:
    """Whether it has a name such as ``add_``, ``_foreach_add_`` or ``__iadd__``."""
    name: str = getattr(func, "__name__", "")
    return name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def _as_remote(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Remote) if tensor.is_meta and type(tensor) is Tensor else tensor


class RemoteParameter(Remote, nn.Parameter):
    """A parameter without memory, because another rank holds it."""

    is_shown = False
    """Whether a user's hook or step looks at gradients now."""

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> "RemoteParameter":
        return super().__new__(cls, data.as_subclass(Tensor), requires_grad)

    @property
    def grad(self) -> Tensor | None:
        """None; a tensor on the meta device while a user's code looks at gradients."""
        return torch.empty_like(self) if self.is_shown and self.requires_grad else None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        assert value is None or value.is_meta, "a gradient of what has no memory"


def shown(is_shown: bool = True) -> AbstractContextManager[None]:
    """Within this context, remote parameters have gradients without numbers, or none."""
    return replaced(RemoteParameter, "is_shown", is_shown)
