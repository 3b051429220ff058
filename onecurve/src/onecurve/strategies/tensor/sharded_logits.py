"""Logits whose vocabulary is sharded: tensors that a task uses as any others.

Within a step of the task, `cut_logits`, each rank has the logits of its entries of the vocabulary,
and no rank ever all of them. They pass through a task as any tensor does: the cross entropy (of
which three numbers a row are sent), `argmax`, and what leaves the entries where they are work on
pieces; anything else, such as a metric that wants to see all of them, gets the full tensor. Every
rank of the group must do alike, as in a step of a task it does. Outside of a step a head makes full
logits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ...compat.of_torch import DisableTorchFunctionSubclass, claim, tree_map_only
from .attention import local
from .collectives import Group, joined, summed


class CutLogits(Tensor):
    """A tensor of which this rank has a piece along one dimension, that of the entries.

    Gradients pass through it as through any other. Made by `wrapped`, read by `unwrapped`.

    Args:
        piece: This rank's, without a graph.
        group: The ranks.
        entries: The dimension.
    """

    piece: Tensor
    group: Group
    entries: int

    @staticmethod
    def __new__(cls, piece: Tensor, group: Group, entries: int) -> "CutLogits":
        """Claim the shape of the whole."""
        shape = list(piece.shape)
        shape[entries] *= group.size
        made: CutLogits = claim(cls, shape, piece)
        made.__dict__.update(piece=piece, group=group, entries=entries)
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """On pieces where that is the same; else on the whole."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")
        if name in OF_ITSELF:
            with DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        first = args[0] if args else kwargs.get("input")
        if isinstance(first, CutLogits) and name in KNOWN:
            options = {key: value for key, value in kwargs.items() if key != "input"}
            made = KNOWN[name](first, func, *args[1:], **options)
            if made is not NotImplemented:
                return made
        args, kwargs = tree_map_only(CutLogits, _whole, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """What autograd does to it: looks at it again, and adds up gradients."""
        first = args[0]
        if func not in OF_AUTOGRAD:
            raise NotImplementedError(f"{func} of logits that are cut between ranks")
        pieces = [value.piece for value in args if isinstance(value, CutLogits)]
        made = func(*pieces) if func is aten.add.Tensor else pieces[0].view_as(pieces[0])
        return CutLogits(made, first.group, first.entries)


aten = torch.ops.aten
KNOWN: dict[str, Callable[..., Any]] = {}
"""What works on pieces, by the names of functions and methods, as given below."""
OF_AUTOGRAD = {aten.add.Tensor, aten.view.default, aten.alias.default, aten.detach.default}
OF_ITSELF = {
    *("shape", "dtype", "device", "ndim", "layout", "size", "dim", "numel", "nelement"),
    *("__len__", "is_floating_point", "is_complex", "is_cuda", "is_sparse", "ndimension"),
    *("is_quantized", "is_nested", "is_meta", "is_cpu", "is_mps", "is_xpu", "names", "itemsize"),
    *("element_size", "get_device", "is_mkldnn", "is_sparse_csr", "is_inference", "is_neg"),
    *("requires_grad", "grad_fn", "is_leaf", "register_hook", "retains_grad", "output_nr"),
    *("_is_view", "_base", "_version"),
}


class _Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, piece: Tensor, group: Group, entries: int) -> CutLogits:
        ctx.group, ctx.entries = group, entries
        return CutLogits(piece.detach(), group, entries)

    @staticmethod
    def backward(ctx: Any, gradient: CutLogits) -> Any:
        # A hook may have looked at the whole.
        is_cut = isinstance(gradient, CutLogits)
        piece = gradient.piece if is_cut else ctx.group.piece(gradient, ctx.entries)
        return piece, None, None


class _Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: CutLogits) -> Tensor:
        ctx.group, ctx.entries = logits.group, logits.entries
        return logits.piece.view_as(logits.piece)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return CutLogits(gradient, ctx.group, ctx.entries)


def wrapped(piece: Tensor, group: Group, entries: int) -> CutLogits:
    """Pieces as one tensor."""
    made: CutLogits = _Wrap.apply(piece, group, entries)
    return made


def unwrapped(logits: CutLogits) -> Tensor:
    """This rank's piece."""
    made: Tensor = _Unwrap.apply(logits)
    return made


def _whole(logits: CutLogits) -> Tensor:
    return joined(logits.group, unwrapped(logits), logits.entries)


def like(logits: CutLogits, piece: Tensor, entries: int | None = None) -> CutLogits:
    """Another piece of the same ranks as one tensor."""
    return wrapped(piece, logits.group, logits.entries if entries is None else entries)


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


def cross_entropy(
    group: Group,
    piece: Tensor,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    """As `torch.nn.functional.cross_entropy`, on each rank.

    It computes in float32 at least, as PyTorch's does under autocast, and within a kernel.

    Args:
        group: The ranks.
        piece: Logits (..., entries of this rank).
        target: Entries (...), of all ranks.
        ignore_index: The target that does not count.
        reduction: "mean" over what counts, "sum" or "none".
        label_smoothing: Share of the target that is spread over all entries.
    """
    autocast = torch.is_autocast_enabled(piece.device.type)
    dtype = torch.promote_types(piece.dtype, torch.float32)
    counts = target != ignore_index
    losses: Tensor = _Rows.apply(
        group, piece.to(dtype), target.masked_fill(~counts, 0), label_smoothing
    )
    losses = losses.masked_fill(~counts, 0).to(dtype if autocast else piece.dtype)
    if reduction == "none":
        return losses
    return losses.sum() / counts.sum() if reduction == "mean" else losses.sum()


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, piece: Tensor, target: Tensor, smooth: float) -> Tensor:
        entries = piece.shape[-1]
        own = target - group.rank * entries
        elsewhere = (own < 0) | (own >= entries)
        own = own.masked_fill(elsewhere, 0).unsqueeze(-1)
        largest = group.sum(piece.amax(-1, keepdim=True), dist.ReduceOp.MAX)
        shifted = piece - largest
        chosen = shifted.gather(-1, own).squeeze(-1).masked_fill(elsewhere, 0)
        likely = shifted.exp()
        sums = [likely.sum(-1), chosen, *([shifted.sum(-1)] if smooth else [])]
        total, chosen, *spread = group.sum(torch.stack(sums))
        losses: Tensor = total.log() - (1 - smooth) * chosen
        if smooth:
            losses = losses - smooth / (entries * group.size) * spread[0]
        ctx.save_for_backward(likely.div_(total.unsqueeze(-1)), own, elsewhere)
        ctx.smooth, ctx.entries = smooth, entries * group.size
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        likely, own, elsewhere = ctx.saved_tensors
        chosen = (ctx.smooth - 1) * (~elsewhere).to(likely.dtype).unsqueeze(-1)
        made = likely - ctx.smooth / ctx.entries if ctx.smooth else likely.clone()
        made.scatter_add_(-1, own, chosen)
        return None, made * gradient.unsqueeze(-1), None, None


STAY_CUT = ContextVar("STAY_CUT", default=False)


@contextmanager
def cut_logits() -> Iterator[None]:
    """For a step of the task: logits of heads in the style `vocab` stay cut meanwhile."""
    token = STAY_CUT.set(True)
    try:
        yield
    finally:
        STAY_CUT.reset(token)


def cut_embedding(layer: nn.Embedding, group: Group, indices: Tensor) -> Tensor:
    """As ``layer.forward``: each rank looks up what it has, the sum has all."""
    weight = local(layer.weight)
    first = group.rank * len(weight)
    elsewhere = (indices < first) | (indices >= first + len(weight))
    padding = layer.padding_idx
    if padding is not None:
        padding = padding - first if first <= padding < first + len(weight) else None
    found = F.embedding((indices - first).masked_fill(elsewhere, 0), weight, padding)
    return summed(group, found.masked_fill(elsewhere.unsqueeze(-1), 0))


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it cannot trace CutLogits
def leave_logits(group: Group, piece: Tensor) -> Tensor:
    """Logits (..., entries of this rank) as logits (..., entries), cut within a step."""
    if STAY_CUT.get():
        return wrapped(piece, group, piece.ndim - 1)
    return joined(group, piece, -1)
