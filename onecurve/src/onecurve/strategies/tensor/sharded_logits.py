"""Logits sharded along the vocabulary, which a task can use like any other tensor.

Within a step of the task (`sharded_logits`), each rank has the logits of its part of the
vocabulary, and no rank has all of them. The cross entropy (which sends three numbers per row),
`argmax`, and operations that keep the vocabulary dimension in place work on shards; any other
function, such as a metric, gets the full tensor. Every rank of the mesh must call the same
functions. Outside of a step a head returns full logits.

A DTensor would not do, because it cannot be combined with plain tensors. PyTorch's `loss_parallel`
would have to surround the backward pass, which a task does not control, and it does not support
label smoothing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from ...compat.of_torch import DisableTorchFunctionSubclass, claim, tree_leaves, tree_map_only
from ...compat.patching import replaced
from ..collectives import redistribute
from .regions import full_sum


class ShardedLogits(Tensor):
    """Wraps a DTensor on a one-dimensional mesh so that it can be combined with plain tensors.

    It is differentiable: `_Wrap` creates it, and `_Unwrap` returns the DTensor.
    """

    shards: DTensor
    are_returned = False

    @staticmethod
    def __new__(cls, shards: DTensor) -> "ShardedLogits":
        """Create a tensor with the shape of the full logits and no data of its own."""
        made: ShardedLogits = claim(cls, [*shards.shape], shards)
        made.__dict__.update(shards=shards)
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function on shards if that gives the same result, else on the full tensor."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        is_property = name == "__get__"
        if is_property:
            name = getattr(func.__self__, "__name__", "")
        if name in OF_ITSELF or (is_property and name not in TENSORS):
            with DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name in BY_SUMS and isinstance(args[0], ShardedLogits):
            made = BY_SUMS[name](*args, **kwargs)
            if made is not NotImplemented:
                return made
        if name in ON_SHARDS and not any(map(_may_need_full_logits, tree_leaves((args, kwargs)))):
            on_shards = tree_map_only(ShardedLogits, _Unwrap.apply, (args, kwargs))
            try:
                made = func(*on_shards[0], **on_shards[1])
            except RuntimeError:
                pass  # a view that mixes the vocabulary dimension needs the full tensor
            else:
                return tree_map_only(DTensor, _wrapped_or_full, made)
        args, kwargs = tree_map_only(ShardedLogits, _full, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the few operators that autograd needs: views, and sums of gradients."""
        if func not in OF_AUTOGRAD:
            raise NotImplementedError(f"{func} of logits that are sharded over ranks")
        shards = tree_map_only(ShardedLogits, lambda logits: logits.shards, args)
        return ShardedLogits(func(*shards, **(kwargs or {})))


aten = torch.ops.aten
OF_AUTOGRAD = {aten.add.Tensor, aten.view.default, aten.alias.default, aten.detach.default}
# All other properties, and these methods, are the same for shards.
TENSORS = {"T", "mT", "H", "mH", "data", "grad", "real", "imag"}
OF_ITSELF = {
    *("size", "dim", "ndimension", "numel", "nelement", "element_size", "__len__", "get_device"),
    *("is_floating_point", "is_complex", "is_inference", "is_neg", "register_hook", "_is_view"),
}
ON_SHARDS = {
    *("float", "double", "half", "bfloat16", "to", "cpu", "cuda", "type"),
    *("detach", "clone", "contiguous", "neg", "tanh"),
    *("mul", "div", "true_divide", "__mul__", "__rmul__", "__truediv__"),
    *("view", "view_as", "reshape", "flatten", "split", "chunk", "tensor_split", "__getitem__"),
    *("transpose", "swapaxes", "swapdims", "permute", "mT", "adjoint"),
}
"""Functions and methods that work on shards of logits."""


def _may_need_full_logits(value: Any) -> bool:
    """Whether a value is a plain tensor that may have one number per entry of the vocabulary."""
    is_plain = isinstance(value, Tensor) and not isinstance(value, ShardedLogits)
    return is_plain and (value.ndim > 0 or value.requires_grad)


class _Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shards: Any) -> ShardedLogits:
        ctx.mesh, ctx.placements = shards.device_mesh, shards.placements
        return ShardedLogits(shards.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> DTensor:
        if isinstance(gradient, ShardedLogits):
            return gradient.shards
        # A hook may have turned the gradient into a full tensor.
        return distribute_tensor(gradient, ctx.mesh, ctx.placements, src_data_rank=None)


class _Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: ShardedLogits) -> Tensor:
        return logits.shards.view_as(logits.shards)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> ShardedLogits:
        return ShardedLogits(gradient)


def _wrapped_or_full(made: DTensor) -> Tensor:
    found: Tensor = _Wrap.apply(made) if type(made.placements[0]) is Shard else made.full_tensor()
    return found


def _full(logits: ShardedLogits) -> Tensor:
    shards: Any = _Unwrap.apply(logits)
    (placement,) = shards.placements
    return redistribute(shards.to_local(), shards.device_mesh.get_group(), placement, Replicate())


def argmax(logits: ShardedLogits, dim: int | None = None, keepdim: bool = False) -> Any:
    """Like `torch.argmax` over the vocabulary, without gathering the logits as DTensor does."""
    (placement,) = logits.shards.placements
    if dim is None or placement != Shard(dim % logits.ndim):
        return NotImplemented
    entries = dim % logits.ndim
    mesh, own = logits.shards.device_mesh, logits.shards.to_local()
    largest, index = own.max(entries, keepdim=True)
    index = index + mesh.get_local_rank() * own.shape[entries]
    # If several entries are the largest, take the first.
    is_largest = largest == full_sum(largest, mesh, "max")
    index = full_sum(index.masked_fill(~is_largest, logits.shape[entries]), mesh, "min")
    return index if keepdim else index.squeeze(entries)


def cross_entropy(
    logits: ShardedLogits,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Like `torch.nn.functional.cross_entropy`; NotImplemented if it needs the full logits.

    It computes in float32 at least, like PyTorch's kernels.
    """
    classes = 1 if logits.ndim > 1 else 0
    is_known = weight is None and size_average is None and reduce is None
    if not is_known or target.is_floating_point() or logits.shards.placements != (Shard(classes),):
        return NotImplemented
    shards: Any = _Unwrap.apply(logits)
    mesh, own = shards.device_mesh, shards.to_local().movedim(classes, -1)
    if target.shape != own.shape[:-1]:
        return NotImplemented
    counts = target != ignore_index
    dtype = torch.promote_types(own.dtype, torch.float32)
    losses = _losses(mesh, own.to(dtype), target.masked_fill(~counts, 0), label_smoothing)
    autocast = torch.is_autocast_enabled(own.device.type)
    losses = losses.masked_fill(~counts, 0).to(dtype if autocast else own.dtype)
    if reduction == "none":
        return losses
    return losses.sum() / counts.sum() if reduction == "mean" else losses.sum()


def _losses(mesh: DeviceMesh, own: Tensor, target: Tensor, smooth: float) -> Tensor:
    """The loss per row, from logits (..., entries of this rank) and targets (...)."""
    entries = own.shape[-1]
    index = target - mesh.get_local_rank() * entries
    is_elsewhere = (index < 0) | (index >= entries)
    shifted = own - full_sum(own.detach().amax(-1, keepdim=True), mesh, "max")
    chosen = shifted.gather(-1, index.masked_fill(is_elsewhere, 0).unsqueeze(-1)).squeeze(-1)
    sums = [shifted.exp().sum(-1), chosen.masked_fill(is_elsewhere, 0)]
    if smooth:
        sums.append(shifted.sum(-1))
    total, chosen, *spread = full_sum(torch.stack(sums), mesh)
    losses: Tensor = total.log() - (1 - smooth) * chosen
    if smooth:
        losses = losses - smooth / (entries * mesh.size()) * spread[0]
    return losses


BY_SUMS: dict[str, Callable[..., Any]] = {"argmax": argmax, "cross_entropy": cross_entropy}
"""Functions and methods that are computed from sums and maxima over the ranks."""


def sharded_logits() -> AbstractContextManager[None]:
    """Entered for a step of the task: heads with the style `vocab` return sharded logits."""
    return replaced(ShardedLogits, "are_returned", True)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it cannot trace ShardedLogits
def leave_logits(mesh: DeviceMesh, own: Tensor) -> Tensor:
    """The output of a head, given (..., entries of this rank): sharded in a step, else full."""
    if ShardedLogits.are_returned:
        made: Tensor = _Wrap.apply(DTensor.from_local(own, mesh, [Shard(-1)]))
        return made
    return redistribute(own, mesh.get_group(), Shard(-1), Replicate())
