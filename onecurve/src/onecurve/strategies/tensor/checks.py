"""What cannot be cut as a plan says, rejected in one line before training."""

from collections.abc import Mapping

from lightning.pytorch import LightningModule
from torch import nn

from ...errors import UserError
from .automatic import is_plain
from .families import (
    STYLES,
    heads_of,
    holds_parameters,
    in_features,
    is_linear,
    linears,
    out_features,
)

INSTEAD = "or use strategy=fsdp"


def check_plan(
    module: LightningModule,
    plan: Mapping[str, str],
    size: int,
    key: str = "strategy=tensor",
    sequence: bool = False,
) -> None:
    """Reject what cannot be cut so."""
    parts = dict(module.named_modules(remove_duplicate=False))
    if all(style == "sequence" for style in plan.values()):
        raise UserError(
            f"{key}: nothing to cut in {type(module).__name__}: it has no pair of Linear layers "
            "with elementwise layers between them, and no attention that is known; say what to cut "
            "by strategy.plan, by a method tensor_plan() of a module, or use strategy=fsdp"
        )
    if sequence and "sequence" not in plan.values():
        raise UserError(
            "strategy.sequence=true: nothing works on pieces of a sequence: no block of attention "
            "and norms is known; give some the style sequence in strategy.plan, or use "
            "strategy.sequence=false"
        )
    for name, style in plan.items():
        check_one(name, parts[name], style, size, key)
    _check_ties(module, plan, key)


def check_one(name: str, part: nn.Module, style: str, size: int, key: str) -> None:
    """As `check_plan`, for one module."""
    kind = type(part).__name__
    if style == "sequence":
        return
    if not holds_parameters(part) and style in ("heads", "colwise") and len(linears(part)) > 1:
        if style == "heads":
            _check_heads(name, heads_of(part), size, key)
        return
    fits = STYLES[style].fits
    if ("Linear" if is_linear(part) else _kind(part)) not in fits.split():
        raise UserError(
            f"strategy.plan: {name} is {kind}, and {style} is of {fits}"
            + (" or of a module that holds some Linear layers" if style == "heads" else "")
            + "; leave it out, or use strategy.plan=auto"
        )
    if isinstance(part, nn.MultiheadAttention):
        if not is_plain(part):
            raise UserError(
                f"strategy.plan: {name} has keys or values of its own (kdim, vdim, add_bias_kv, "
                f"add_zero_attn), and heads cannot cut those; leave it out, {INSTEAD}"
            )
        _check_heads(name, part.num_heads, size, key)
    elif isinstance(part, nn.Embedding):
        if part.max_norm is not None or part.scale_grad_by_freq or part.sparse:
            raise UserError(
                f"strategy.plan: {name} has max_norm, scale_grad_by_freq or sparse, which want all "
                f"of its entries; leave it out, {INSTEAD}"
            )
        _check_divides(name, part.num_embeddings, "entries", size, key)
    elif is_linear(part) and style == "rowwise":
        _check_divides(name, in_features(part), "input features", size, key)
    elif is_linear(part):
        _check_divides(name, out_features(part), "output features", size, key)


def _kind(part: nn.Module) -> str:
    kinds = (nn.Embedding, nn.MultiheadAttention)
    return next((kind.__name__ for kind in kinds if isinstance(part, kind)), "")


def _check_heads(name: str, heads: int | None, size: int, key: str) -> None:
    if heads is not None:
        _check_divides(name, heads, "heads", size, key)


def _check_divides(name: str, number: int, what: str, size: int, key: str) -> None:
    if number % size:
        fits = max(ranks for ranks in range(1, size) if number % ranks == 0)
        instead = f"use {fits} ranks for it" if fits > 1 else "use another number of ranks for it"
        raise UserError(
            f"{key}: {size} ranks cannot share the {number} {what} of {name} evenly; {instead}, "
            f"leave it out of strategy.plan, {INSTEAD}"
        )


def _check_ties(module: LightningModule, plan: Mapping[str, str], key: str) -> None:
    seen: dict[int, tuple[str, str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        holder = name.rpartition(".")[0]
        style = plan.get(holder, "whole")
        if isinstance(module.get_submodule(holder.rpartition(".")[0]), nn.MultiheadAttention):
            style = plan.get(holder.rpartition(".")[0], style)
        cut = {"colwise_gather": "colwise", "vocab": "colwise", "sequence": "whole"}.get(
            style, style
        )
        other, before = seen.setdefault(id(weight), (name, cut))
        if before != cut:
            raise UserError(
                f"{key}: {other} and {name} are one weight, cut in two ways ({before}, {cut}); "
                "give both one style in strategy.plan (an embedding and its head: vocab), leave "
                "both out, or untie them"
            )
