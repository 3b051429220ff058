"""A tensor of which each rank has a piece, and which a task uses as any other.

What is known to do the same to pieces, `KNOWN`, works on them; anything else gets the whole.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...compat.of_torch import DisableTorchFunctionSubclass, claim, tree_map_only
from .collectives import Group, joined


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
"""What works on pieces, by the names of functions and methods; `logits_functions.py` fills it."""
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
