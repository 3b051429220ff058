"""Tensors without data, which replace those of layers that another rank holds.

Code computes with them on the meta device; who asks for their numbers gets PyTorch's error. What
would lose the weights of other ranks silently is an error of ours: adding one in place to a tensor
with data (``total += weight.abs().sum()``), and drawing random numbers for one, after which the
generators of the ranks would differ. `gradients.explained` makes one line of each.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...compat.of_torch import (
    SKIP_META,
    DisableTorchFunctionSubclass,
    TorchDispatchMode,
    is_in_place,
    tensor_leaves,
    tree_map_only,
)
from ..mesh.ranks import each_rank_has

# What PyTorch says of a tensor without data: also if it is assigned to `data` of another, or given
# to autograd.grad; and of a copy of a module that calls the stages.
NO_DATA = re.compile(
    r"\bmeta\b|incompatible tensor type|not have been used in the graph|pickle .*ProcessGroup",
    re.IGNORECASE,
)
# What `__torch_function__` gets for `tensor.device`; mypy takes `device` for a plain value.
WHERE: Any = [getattr(name, "__get__") for name in (Tensor.device, Tensor.is_meta)]  # noqa: B009
DIVIDED = "_divided_by_a_pipeline"
"""An attribute of a task of which other ranks hold layers."""


class Remote(Tensor):
    """A tensor on the meta device, and so is what is computed from it."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function; reject what would lose numbers of this tensor silently."""
        if func in WHERE and sys._getframe(1).f_globals["__name__"] in SKIP_META:
            raise RuntimeError("a tensor on the meta device would be skipped: no data")
        with DisableTorchFunctionSubclass(), _NothingLost():  # type: ignore[no-untyped-call]
            result = func(*args, **(kwargs or {}))
        return tree_map_only(Tensor, _as_remote, result)

    def __deepcopy__(self, memo: Any) -> Tensor:
        if type(self) is Remote:
            return self.clone()
        copy: Any = super().__deepcopy__  # rejects a copy of a module, which calls the stages
        return copy(memo)  # type: ignore[no-any-return]


class _NothingLost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Rejects draws for a tensor without data, and changes of another by it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        draws = torch.Tag.nondeterministic_seeded in func.tags
        changed = tensor_leaves([args[:1], kwargs.get("out")]) if is_in_place(func) else []
        has_remote = any(tensor.is_meta for tensor in tensor_leaves([args, kwargs]))
        if draws or (has_remote and not all(tensor.is_meta for tensor in changed)):
            raise RuntimeError(f"{func} of a tensor on the meta device: no data")
        return func(*args, **kwargs)


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
