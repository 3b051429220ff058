"""What of PyTorch's functions works on pieces of logits, with the numbers of the whole."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .cross_entropy import cross_entropy
from .logits import KNOWN, CutLogits, like, unwrapped


def _alike(logits: CutLogits, func: Any, *args: Any, **options: Any) -> Any:
    """One number after the other, with numbers that are the same for all."""
    if any(isinstance(value, Tensor) and value.ndim for value in (*args, *options.values())):
        return NotImplemented
    return like(logits, func(unwrapped(logits), *args, **options))


def _flatten(logits: CutLogits, func: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    last, ndim = logits.entries, logits.ndim
    start, end = start_dim % ndim, end_dim % ndim
    if start <= last <= end and start != end:
        return NotImplemented
    moved = last - (end - start) if last > end else last
    return like(logits, unwrapped(logits).flatten(start, end), moved)


def _view(logits: CutLogits, func: Any, *shape: Any) -> Any:
    sizes = list(shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape)
    if any(not isinstance(size, int) for size in sizes) or logits.entries != logits.ndim - 1:
        return NotImplemented
    number = logits.shape[-1]
    known = [size for size in sizes if size != -1]
    if sizes[-1] == -1:
        left = logits.numel() // max(torch.Size(known).numel(), 1)
        sizes[-1] = left
    if not number or sizes[-1] != number:
        return NotImplemented
    return like(
        logits, unwrapped(logits).reshape(*sizes[:-1], logits.piece.shape[-1]), len(sizes) - 1
    )


def _transpose(logits: CutLogits, func: Any, dim0: int, dim1: int) -> Any:
    first, second = dim0 % logits.ndim, dim1 % logits.ndim
    moved = {first: second, second: first}.get(logits.entries, logits.entries)
    return like(logits, unwrapped(logits).transpose(first, second), moved)


def _view_as(logits: CutLogits, func: Any, other: Tensor) -> Any:
    return _view(logits, func, *other.shape)


def _matrix_transpose(logits: CutLogits, func: Any, *_: Any) -> Any:
    return _transpose(logits, func, -2, -1)


def _permute(logits: CutLogits, func: Any, *dims: Any) -> Any:
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], Sequence) else dims
    order = [dim % logits.ndim for dim in order]
    return like(logits, unwrapped(logits).permute(order), order.index(logits.entries))


def _split(logits: CutLogits, func: Any, parts: Any, dim: int = 0) -> Any:
    if dim % logits.ndim == logits.entries:
        return NotImplemented
    return tuple(like(logits, piece) for piece in func(unwrapped(logits), parts, dim))


def _item(logits: CutLogits, func: Any, index: Any) -> Any:
    if not isinstance(index, slice | int) or isinstance(index, bool) or logits.entries == 0:
        return NotImplemented
    piece = func(unwrapped(logits), index)
    return like(logits, piece, logits.entries - (logits.ndim - piece.ndim))


def _argmax(logits: CutLogits, func: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    entries, group = logits.entries, logits.group
    if dim is None or dim % logits.ndim != entries:
        return NotImplemented
    largest, index = unwrapped(logits).detach().max(entries, keepdim=True)
    index = index + group.rank * logits.piece.shape[entries]
    # Of several that are the largest, the first.
    is_largest = largest == group.sum(largest, dist.ReduceOp.MAX)
    index = index.masked_fill(~is_largest, logits.shape[entries])
    index = group.sum(index, dist.ReduceOp.MIN)
    return index if keepdim else index.squeeze(entries)


def _cross_entropy(
    logits: CutLogits,
    func: Any,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    classes = 1 if logits.ndim > 1 else 0
    known = weight is None and size_average is None and reduce is None
    if not known or target.is_floating_point() or logits.entries != classes:
        return NotImplemented
    rows = unwrapped(logits).movedim(classes, -1)
    if target.shape != rows.shape[:-1]:
        return NotImplemented
    return cross_entropy(logits.group, rows, target, ignore_index, reduction, label_smoothing)


KNOWN |= {
    **dict.fromkeys(
        ("float", "double", "half", "bfloat16", "detach", "clone", "contiguous"), _alike
    ),
    **dict.fromkeys(("to", "cpu", "cuda", "type", "neg", "tanh", "type_as"), _alike),
    **dict.fromkeys(("mul", "div", "true_divide", "__mul__", "__rmul__", "__truediv__"), _alike),
    **dict.fromkeys(("view", "reshape"), _view),
    **dict.fromkeys(("split", "chunk", "tensor_split"), _split),
    **dict.fromkeys(("mT", "adjoint"), _matrix_transpose),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), _transpose),
    "view_as": _view_as,
    "flatten": _flatten,
    "permute": _permute,
    "__getitem__": _item,
    "argmax": _argmax,
    "cross_entropy": _cross_entropy,
}
