"""Tensors without data, which replace those of layers that another rank holds.

PyTorch leaves a tensor as it is where one without data is added to it in place. So a penalty that
is summed up by ``total += weight.abs().sum()``, or a teacher whose weights follow by
``mean.mul_(0.99).add_(weight, alpha=0.01)``, would lose the weights of other ranks silently.

Nor does PyTorch draw for a tensor without data. Here as many numbers are drawn and dropped, so that
a hook that draws the weights of all layers draws those of this rank's as in one process.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...compat.of_torch import (
    HISTOGRAMS,
    DisableTorchFunctionSubclass,
    TorchDispatchMode,
    tensor_leaves,
    tree_map_only,
)
from ...compat.patching import replaced
from ..mesh.ranks import each_rank_has

INITIALIZERS = ("orthogonal_", "sparse_", "trunc_normal_")
"""Functions of torch.nn.init that do nothing to a tensor without data."""

# What PyTorch says where a tensor has no data: also where one is assigned to `data` of another.
NO_DATA = re.compile("meta|incompatible tensor type", re.IGNORECASE)
# What `__torch_function__` gets for `tensor.device`; mypy takes `device` for a plain value.
DEVICE: Any = getattr(Tensor.device, "__get__")  # noqa: B009
DIVIDED = "_divided_by_a_pipeline"
"""An attribute of a task of which other ranks hold layers."""


class Remote(Tensor):
    """A tensor on the meta device, and so is what is computed from it; in-place use is rejected."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if func == DEVICE and sys._getframe(1).f_globals["__name__"] == HISTOGRAMS:
            raise RuntimeError("no data of a tensor on the meta device to draw a histogram of")
        changed = [args[:1] if works_in_place(name) else None, kwargs.get("out")]
        if not all(tensor.is_meta for tensor in tensor_leaves(changed)):
            raise RuntimeError(f"{func.__name__} of a tensor on the meta device: no data")
        with DisableTorchFunctionSubclass(), _Draws():  # type: ignore[no-untyped-call]
            result = func(*args, **kwargs)
        return tree_map_only(Tensor, _as_remote, result)

    def __deepcopy__(self, memo: Any) -> Tensor:
        if type(self) is Remote:
            return self.clone()
        copy: Any = super().__deepcopy__  # rejects a copy of a module, which calls the stages
        return copy(memo)  # type: ignore[no-any-return]


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws as many numbers as for tensors with data, and drops them."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            func(*tree_map_only(Tensor, _full, args), **tree_map_only(Tensor, _full, kwargs))
        return func(*args, **kwargs)


@contextmanager
def drawing() -> Iterator[None]:
    """Within the context, initializers of PyTorch draw for remote tensors, too."""
    with ExitStack() as stack:
        for name in INITIALIZERS:
            stack.enter_context(replaced(nn.init, name, _drawing(getattr(nn.init, name))))
        yield


def _drawing(initialize: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(initialize)
    def initialized(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        initialize(_full(tensor) if isinstance(tensor, Remote) else tensor, *args, **options)
        return tensor

    return initialized


def works_in_place(name: str) -> bool:
    """Whether a function has a name such as ``add_``, ``_foreach_add_`` or ``__iadd__``."""
    return name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def _full(tensor: Tensor) -> Tensor:
    device = "cuda" if torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]
    full = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return full.fill_(0.5)  # such as a probability


def _as_remote(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(Remote) if tensor.is_meta and type(tensor) is Tensor else tensor


class RemoteParameter(Remote, nn.Parameter):
    """A parameter without memory, because another rank holds it; so is its gradient."""

    def __new__(cls, data: Tensor, requires_grad: bool = True) -> "RemoteParameter":
        return super().__new__(cls, data.as_subclass(Tensor), requires_grad)


def add_gradients(remote: Mapping[RemoteParameter, Tensor]) -> None:
    """Let parameters have these gradients without numbers, where those of this rank have theirs."""
    with DisableTorchFunctionSubclass():
        for parameter, gradient in remote.items():
            if parameter.requires_grad:
                parameter.grad = gradient


def replace_tensors(modules: Iterable[nn.Module], others: Mapping[Tensor, Tensor]) -> None:
    """Replace parameters and buffers wherever one of the modules holds them."""
    for module in modules:
        for names in (module.named_parameters, module.named_buffers):
            for name, tensor in list(names(recurse=False, remove_duplicate=False)):
                if tensor in others:
                    setattr(module, name, others[tensor])


@torch.no_grad()
def restore(task: nn.Module, device: torch.device) -> None:
    """Give each rank all layers of a task that the strategy of another Trainer has divided."""
    if not vars(task).pop(DIVIDED, False):
        return
    tensors = {**dict(task.named_parameters()), **dict(task.named_buffers())}
    held = [name for name, tensor in tensors.items() if not isinstance(tensor, Remote)]
    of_ranks = each_rank_has(held, None)
    found: dict[Tensor, Tensor] = {}
    for name, tensor in tensors.items():
        holders = [rank for rank, names in enumerate(of_ranks) if name in names]
        if len(holders) == len(of_ranks):
            continue
        value = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        if name in held:
            value.copy_(tensor)
        dist.broadcast(value, holders[0])
        if isinstance(tensor, RemoteParameter):
            found[tensor] = nn.Parameter(value.cpu(), tensor.requires_grad)
        elif name not in held:
            found[tensor] = value.cpu()
    replace_tensors(task.modules(), found)
