"""Finds, validates and reports a plan: which modules a tensor group shards, in which styles.

| style            | for                     | each rank holds | reads        | returns          |
|------------------|-------------------------|-----------------|--------------|------------------|
| `colwise`        | Linear                  | some outputs    | full         | its features     |
| `rowwise`        | Linear                  | some inputs     | its features | full: summed     |
| `colwise_gather` | Linear                  | some outputs    | full         | full: gathered   |
| `fused`          | Linear in `heads` or    | some outputs    | full         | its features     |
|                  | `colwise`               |                 |              | of each section  |
| `vocab`          | Embedding               | some entries    | full         | full: summed     |
| `vocab`          | Linear, the last        | some entries    | full         | full: gathered   |
| `heads`          | nn.MultiheadAttention,  | some heads      | full         | full             |
|                  | or a custom attention   |                 |              |                  |

In a custom attention with the style `heads`, Linear layers are `colwise`, except the output
projection, which is `rowwise`. `colwise` for a custom module is the same without heads.

A fused projection of queries, keys and values is `fused` if its rows are all queries, all keys, all
values, and `colwise` if heads are outermost, `(heads, 3, d)`.
Code between sharded layers writes -1 for the number of heads, or reads it from an attribute such as
`self.heads`, which is set to the number on this rank.
"""

import difflib
import re
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn

from ...errors import UserError
from .styles import (
    STYLES,
    InferredPlan,
    calls_as,
    heads_of,
    holds_parameters,
    in_features,
    is_divided,
    is_linear,
    is_plain,
    is_within,
    out_features,
    sections_of,
    styles_within,
    within,
)

INSTEAD = "or use strategy=fsdp"


def find_plan(
    module: LightningModule,
    layers: Mapping[str, nn.Module],
    given: Mapping[str, str] | str | None,
    size: int | None = None,
) -> dict[str, str]:
    """Find the modules to shard, and their styles.

    A given plan is used as it is. Otherwise any module (the task, its network, a layer) may define
    ``tensor_plan()``, which returns styles by globs of names within it, "" for itself; the plan of
    all other modules is inferred.

    Args:
        module: The task.
        layers: The layers to shard, by their full dotted names; {"": module} for all. A pair spans
            these alone.
        given: Styles by globs of module names, with or without the name of the network; of two that
            match a name, the latter counts. "auto" or None for no given plan.
        size: An inferred plan omits layers that so many ranks cannot share evenly.

    Returns:
        The style of each module by its full dotted name.
    """
    named = dict(module.named_modules(remove_duplicate=False))
    if isinstance(given, Mapping):
        plan = _fitting(named, "", given, "strategy.plan")
    else:
        roots, plan = _with_own_plan(named), {}
        for name in roots:
            top: Any = named[name]
            plan |= _fitting(named, name, top.tensor_plan(), f"{type(top).__name__}.tensor_plan()")
        plan = InferredPlan(module, [*layers], roots, plan, size).plan
    styles = {
        name: style
        for name, style in _with_children(named, plan).items()
        if any(is_within(name, layer) for layer in layers)
    }
    return {name: styles[name] for name in named if name in styles}


def _with_own_plan(modules: Mapping[str, nn.Module]) -> list[str]:
    names: list[str] = []
    for name, module in modules.items():
        has_plan = callable(getattr(module, "tensor_plan", None))
        if has_plan and not any(is_within(name, outer) for outer in names):
            names.append(name)
    return names


def _fitting(
    modules: Mapping[str, nn.Module], outer: str, globs: Mapping[str, str], key: str
) -> dict[str, str]:
    """The styles of the modules within `outer` that the globs match."""
    within = {name[len(outer) :].lstrip("."): name for name in modules if is_within(name, outer)}
    plan: dict[str, str] = {}
    for glob, style in globs.items():
        if style not in STYLES:
            raise UserError(f"{key}: {glob}={style} is not a style; use one of {', '.join(STYLES)}")
        matches = [
            name
            for short, name in within.items()
            if fnmatchcase(short, glob) or (not outer and fnmatchcase(_of_network(short), glob))
        ]
        if not matches:
            names = [name for name, each in within.items() if holds_parameters(modules[each])]
            near = difflib.get_close_matches(glob, [*names, *map(_of_network, names)], 1, 0.0)
            raise UserError(
                f"{key}: {glob} matches no module; use names such as "
                f"{(near or ['those of the network'])[0]}, where * matches anything, or "
                "strategy.plan=auto"
            )
        plan |= dict.fromkeys(matches, style)
    return plan


def _of_network(name: str) -> str:
    return name.partition(".")[2]


def _with_children(modules: Mapping[str, nn.Module], plan: Mapping[str, str]) -> dict[str, str]:
    """Add the Linear layers of modules whose heads or hidden units are shared to a plan."""
    full = dict(plan)
    for name, style in plan.items():
        if is_divided(modules[name], style):
            for child, child_style in styles_within(modules[name]).items():
                full.setdefault(f"{name}.{child}".lstrip("."), child_style)
    return full


def check_plan(
    module: LightningModule,
    plan: Mapping[str, str],
    size: int,
    key: str = "strategy=tensor",
) -> None:
    """Reject a plan that cannot shard the module over `size` ranks."""
    modules = dict(module.named_modules(remove_duplicate=False))
    if not plan:
        raise UserError(
            f"{key}: nothing to shard in {type(module).__name__}: it has no Linear layer, used "
            f"once, whose outputs {size} ranks can share, and no known attention; give layers "
            "styles in strategy.plan, such as vocab to an embedding, or use strategy=fsdp"
        )
    for name, style in plan.items():
        check_one(name, modules[name], style, size, key, within(plan, name))
        if style == "fused":
            _check_fused(name, modules, plan, size, key)
    _check_ties(module, plan, key)


def check_one(
    name: str,
    module: nn.Module,
    style: str,
    size: int,
    key: str,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Like `check_plan`, for one module.

    Its submodules have these styles, by path, or else those of its family.
    """
    if is_divided(module, style):
        heads = heads_of(module, styles) if style == "heads" else None
        if heads is not None:
            _check_divides(name, heads, "heads", size, key)
        return
    fits, needs_all = STYLES[style].fits, ""
    kind = "Linear" if is_linear(module) else _kind(module)
    if kind not in fits.split():
        raise UserError(
            f"strategy.plan: {name} is {type(module).__name__}, and {style} is for {fits}"
            + (" or for a module that holds some Linear layers" if style == "heads" else "")
            + "; leave it out, or use strategy.plan=auto"
        )
    if isinstance(module, nn.MultiheadAttention):
        number, what = module.num_heads, "heads"
        if not is_plain(module):
            needs_all = "keys or values of its own (kdim, vdim, add_bias_kv, add_zero_attn)"
    elif isinstance(module, nn.Embedding):
        number, what = module.num_embeddings, "entries"
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            needs_all = "max_norm, scale_grad_by_freq or sparse"
    elif is_linear(module):
        reads = style == "rowwise"
        number = in_features(module) if reads else out_features(module)
        what = "input features" if reads else "output features"
    if needs_all:
        raise UserError(
            f"strategy.plan: {name} has {needs_all}, which ranks cannot share; leave it out, "
            f"{INSTEAD}"
        )
    _check_divides(name, number, what, size, key)


def _check_fused(
    name: str, modules: Mapping[str, nn.Module], plan: Mapping[str, str], size: int, key: str
) -> None:
    outer, _, layer = name.rpartition(".")
    sections = sections_of(modules[outer], within(plan, outer), layer)
    if sections is None:
        raise UserError(
            f"strategy.plan: {name} is fused, which is for one projection of queries, keys and "
            "values in a module with the style heads, or of gates and hidden units in one with "
            "the style colwise, beside one layer with the style rowwise; give it another style, "
            f"{INSTEAD}"
        )
    for number in sections:
        _check_divides(name, number, "features of one section", size, key)


def _kind(module: nn.Module) -> str:
    kinds = (nn.Embedding, nn.MultiheadAttention)
    return next((kind.__name__ for kind in kinds if calls_as(module, kind)), "")


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
        style = plan.get(holder, "unsharded")
        if isinstance(module.get_submodule(holder.rpartition(".")[0]), nn.MultiheadAttention):
            style = plan.get(holder.rpartition(".")[0], style)
        same = {"colwise_gather": "colwise", "vocab": "colwise"}
        style = same.get(style, style)
        other, before = seen.setdefault(id(weight), (name, style))
        if before != style:
            raise UserError(
                f"{key}: {other} and {name} are one weight, sharded in two ways ({before}, "
                f"{style}); give both one style in strategy.plan (an embedding and its head: "
                "vocab), leave both out, or untie them"
            )


def report_plan(module: LightningModule, plan: Mapping[str, str], size: int) -> None:
    """Print the plan of a module; names that differ by numbers only share a line."""
    rows = Counter((re.sub(r"\d+", "*", name), style) for name, style in plan.items())
    lines = [f"Tensor parallelism, {size} ranks"]
    for (name, style), number in rows.items():
        lines.append(f"  {name}{f' ({number})' if number > 1 else ''}: {style}")
    total = sum(parameter.numel() for parameter in module.parameters())
    sharded = sharded_parameters(module, plan)
    lines.append(
        f"{sharded / total:.1%} of {total:,} parameters are sharded over {size} ranks; "
        f"each holds {total - sharded + sharded // size:,}"
    )
    if {*plan.values()} == {"colwise_gather"}:
        lines.append(
            "no attention and no pair of layers is known here, so each Linear layer is sharded by "
            "its outputs, which ranks send to each other: strategy.plan can give better styles"
        )
    if any(map(_drops, module.modules())):
        lines.append(
            "dropout between sharded layers draws the same masks for different features on each "
            "rank: the loss is close to that of one process, but not equal"
        )
    print("\n".join(lines), flush=True)


def sharded_parameters(module: nn.Module, plan: Mapping[str, str]) -> int:
    """The number of parameters that the ranks share."""
    sharded: dict[nn.Parameter, int] = {}
    for name, style in plan.items():
        part = module.get_submodule(name)
        for path, parameter in part.named_parameters() if holds_parameters(part) else ():
            if path in STYLES[style].dims:
                sharded[parameter] = parameter.numel()
    return sum(sharded.values())


def _drops(layer: nn.Module) -> bool:
    rate = layer.p if isinstance(layer, nn.Dropout) else getattr(layer, "dropout", None)
    return isinstance(rate, float) and rate > 0
