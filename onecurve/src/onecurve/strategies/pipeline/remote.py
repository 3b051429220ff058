"""Tensors without data, which stand for those of layers that another rank holds.

PyTorch leaves a tensor as it is where one without data is added to it in place. So a penalty that
is summed up by ``total += weight.abs().sum()``, or a teacher whose weights follow by
``mean.mul_(0.99).add_(weight, alpha=0.01)``, would lose the weights of other ranks silently.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...compat.of_torch import DisableTorchFunctionSubclass, tensor_leaves, tree_map_only


class Remote(Tensor):
    """A tensor on the meta device, as is all that is computed from it; it changes no other one."""

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
