"""Finds the plan: which modules are sharded over the ranks of a tensor group, in which style.

| style            | for                     | each rank holds | reads        | returns          |
|------------------|-------------------------|-----------------|--------------|------------------|
| `colwise`        | Linear                  | some outputs    | full         | its features     |
| `rowwise`        | Linear                  | some inputs     | its features | full: summed     |
| `colwise_gather` | Linear                  | some outputs    | full         | full: gathered   |
| `fused`          | Linear in `heads` or    | some outputs    | full         | its features     |
|                  | `colwise`               |                 |              | of each section  |
| `vocab`          | Embedding               | some entries    | full         | full: summed     |
| `vocab`          | Linear, the last        | some entries    | full         | logits of its    |
|                  |                         |                 |              | entries; full    |
|                  |                         |                 |              | outside of steps |
| `heads`          | nn.MultiheadAttention,  | some heads      | full         | full             |
|                  | or a custom attention   |                 |              |                  |
| `sequence`       | a block, a norm         | all parameters  | a shard      | a shard          |

In a custom attention with the style `heads`, Linear layers are `colwise`, except the output
projection, which is `rowwise`. `colwise` for a custom module is the same without heads.

A fused projection of queries, keys and values is `fused` if its rows are all queries, all keys, all
values, and `colwise` if heads are outermost, `(heads, 3, d)`.
Code between sharded layers writes -1 for the number of heads, or reads it from an attribute such as
`self.heads`, which is set to the number on this rank. `sequence` only has an effect with
`strategy.sequence=true`: such neighbours pass shards of (N, T, features) along T to each other.
"""

import difflib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn

from ...errors import UserError
from .checks import check_plan
from .families import STYLES, holds_parameters, is_divided, is_within, styles_within
from .infer_plan import InferredPlan

__all__ = ["check_plan", "find_plan"]


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
        layers: The layers to shard, by their full dotted names; {"": module} for all. If they are
            layers of one sequence, a pair may span two of them.
        given: Styles by globs of module names, with or without the name of the network; of two that
            match a name, the latter counts. "auto" or None for no given plan.
        size: How many ranks share layers. An inferred plan omits layers that these ranks cannot
            share evenly.

    Returns:
        The style of each module by its full dotted name.
    """
    parts = dict(module.named_modules(remove_duplicate=False))
    if isinstance(given, Mapping):
        plan = _fitting(parts, "", given, "strategy.plan")
    elif given not in (None, "auto"):
        raise UserError(
            f"strategy.plan={given}: must be auto, or styles by globs of module names, such as "
            "{'*.mlp.0': colwise, '*.mlp.2': rowwise}; use strategy.plan=auto"
        )
    else:
        found, plan = _with_own_plan(parts), {}
        for name in found:
            own: Any = parts[name]
            plan |= _fitting(parts, name, own.tensor_plan(), f"{type(own).__name__}.tensor_plan()")
        plan = InferredPlan(module, layers, found, plan, size).plan
    held = {
        name: style
        for name, style in _with_children(parts, plan).items()
        if any(is_within(name, layer) for layer in layers)
    }
    return {name: held[name] for name in parts if name in held}


def _with_own_plan(parts: Mapping[str, nn.Module]) -> list[str]:
    found: list[str] = []
    for name, part in parts.items():
        has_plan = callable(getattr(part, "tensor_plan", None))
        if has_plan and not any(is_within(name, outer) for outer in found):
            found.append(name)
    return found


def _fitting(
    parts: Mapping[str, nn.Module], outer: str, globs: Mapping[str, str], key: str
) -> dict[str, str]:
    """The styles of the modules within `outer` that the globs match."""
    within = {name[len(outer) :].lstrip("."): name for name in parts if is_within(name, outer)}
    plan: dict[str, str] = {}
    for glob, style in globs.items():
        if style not in STYLES:
            raise UserError(f"{key}: {glob}={style} is not a style; use one of {', '.join(STYLES)}")
        fit = [
            name
            for short, name in within.items()
            if fnmatchcase(short, glob) or (not outer and fnmatchcase(_of_network(short), glob))
        ]
        if not fit:
            names = [name for name, each in within.items() if holds_parameters(parts[each])]
            near = difflib.get_close_matches(glob, [*names, *map(_of_network, names)], 1, 0.0)
            raise UserError(
                f"{key}: {glob} matches no module; use names such as "
                f"{(near or ['those of the network'])[0]}, where * matches anything, or "
                "strategy.plan=auto"
            )
        plan |= dict.fromkeys(fit, style)
    return plan


def _of_network(name: str) -> str:
    return name.partition(".")[2]


def _with_children(parts: Mapping[str, nn.Module], plan: Mapping[str, str]) -> dict[str, str]:
    """Add the Linear layers of modules whose heads or hidden units are shared to a plan."""
    full = dict(plan)
    for name, style in plan.items():
        if is_divided(parts[name], style):
            for child, own in styles_within(parts[name]).items():
                full.setdefault(f"{name}.{child}".lstrip("."), own)
    return full
