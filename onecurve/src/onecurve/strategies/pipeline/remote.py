"""Tensors without data, which replace those of layers that another rank holds.

Code computes with them on the meta device; who asks for their numbers gets PyTorch's error. What
would lose the weights of other ranks silently is an error of ours: adding one in place to a tensor
with data (``total += weight.abs().sum()``), and drawing random numbers for one, after which the
generators of the ranks would differ. `gradients.explained` makes one line of each.

An optimizer sees nothing of them within its step. Its groups list all parameters, so that names,
ids and `requires_grad` are those of one process. PyTorch's optimizers update each parameter by
itself (LBFGS does not). One that combines several, as by a norm over all gradients, would combine
those of this rank's layers alone: those known to do so are rejected, and a line tells of any other
that is not one of torch.optim.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from ...compat.of_torch import (
    SKIP_META,
    DisableTorchFunctionSubclass,
    TorchDispatchMode,
    is_in_place,
    tensor_leaves,
    tree_map_only,
    unscaling_within,
)
from ...compat.patches import replaced
from ...errors import UserError, say
from ..mesh.ranks import gather_objects

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
    """Rejects draws for a tensor without data, and changes of another by it.

    What is moved to where it is stays where it was.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        draws = torch.Tag.nondeterministic_seeded in func.tags
        changed = tensor_leaves([args[:1], kwargs.get("out")]) if is_in_place(func) else []
        has_remote = any(tensor.is_meta for tensor in tensor_leaves([args, kwargs]))
        if func is torch.ops.aten._to_copy.default and not args[0].is_meta:
            kwargs = {**kwargs, "device": args[0].device}  # as `average.type_as(weight)`
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
    local = [name for name, tensor in tensors.items() if not isinstance(tensor, Remote)]
    of_ranks = gather_objects(local, None)
    restored: dict[Tensor, Tensor] = {}
    for name, tensor in tensors.items():
        holders = [rank for rank, names in enumerate(of_ranks) if name in names]
        if len(holders) == len(of_ranks):
            continue
        value = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        if name in local:
            value.copy_(tensor)
        dist.broadcast(value, holders[0])
        if isinstance(tensor, RemoteParameter):
            restored[tensor] = nn.Parameter(value.cpu(), tensor.requires_grad)
        elif name not in local:
            restored[tensor] = value.cpu()
    replace_tensors(task.modules(), restored)


COMBINE = ("torch.optim.lbfgs.LBFGS", "timm.optim.lamb.Lamb", "prodigyopt.prodigy.Prodigy")
INSTEAD = "use one of torch.optim, such as AdamW, or strategy=ddp"


def set_up_optimizers(
    optimizers: Iterable[Optimizer], scaler: GradScaler | None, until: ExitStack
) -> None:
    """Keep optimizers, and so a gradient scaler, from remote parameters.

    What they prepare beforehand, as Adagrad does, is dropped.
    """
    for optimizer in optimizers:
        if optimizer.param_groups:  # not Lightning's own, of a task without an optimizer
            _check_kind(type(optimizer))
        for parameter in [each for each in optimizer.state if each.is_meta]:
            del optimizer.state[parameter]
        # A method still: schedulers that are made later ask for its function.
        step = MethodType(_on_local_parameters(optimizer.step), optimizer)
        until.enter_context(replaced(optimizer, "step", step))
    if scaler is not None:
        until.enter_context(unscaling_within(scaler, _local_parameters))


def _check_kind(kind: type[Optimizer]) -> None:
    bases = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    if any(name in COMBINE for name in bases):
        raise UserError(
            f"strategy=pipeline: {kind.__name__} updates a parameter by the gradients of others, "
            f"and a rank has only those of its own layers; {INSTEAD}"
        )
    if not kind.__module__.startswith("torch.") and dist.get_rank() == 0:
        say(
            f"strategy=pipeline: {kind.__name__} is not one of torch.optim, and each rank runs it "
            "on its own layers: right if it updates each parameter by itself, another curve if it "
            f"combines several (a norm over all gradients); onecurve.parity shows which; {INSTEAD}"
        )


def _on_local_parameters(step: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(step)
    def on_local_parameters(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        # In the closure a task finds all parameters.
        full = _parameters(optimizer, [group["params"] for group in optimizer.param_groups])

        def with_all(value: Any) -> Any:
            return full(value) if callable(value) else value

        with _local_parameters(optimizer):
            return step(*map(with_all, args), **{n: with_all(v) for n, v in kwargs.items()})

    return on_local_parameters


@contextmanager
def _parameters(optimizer: Optimizer, lists: list[list[Tensor]]) -> Iterator[None]:
    """Within the context, each group lists these parameters."""
    groups = optimizer.param_groups
    before = [group["params"] for group in groups]
    try:
        for group, parameters in zip(groups, lists, strict=True):
            group["params"] = parameters
        yield
    finally:
        for group, parameters in zip(groups, before, strict=True):
            group["params"] = parameters


@contextmanager
def _local_parameters(optimizer: Optimizer) -> Iterator[None]:
    full = [group["params"] for group in optimizer.param_groups]
    with _parameters(optimizer, [[each for each in ps if not each.is_meta] for ps in full]):
        yield
