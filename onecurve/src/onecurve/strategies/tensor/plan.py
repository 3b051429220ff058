"""The plan: which modules are cut between the ranks of a tensor group, and in which style.

| style            | of                      | each rank holds | reads        | makes            |
|------------------|-------------------------|-----------------|--------------|------------------|
| `colwise`        | Linear                  | some outputs    | whole        | its features     |
| `rowwise`        | Linear                  | some inputs     | its features | whole: the sum   |
| `colwise_gather` | Linear                  | some outputs    | whole        | whole: joined    |
| `fused`          | Linear in `heads` or    | some outputs    | whole        | its features     |
|                  | `colwise`               |                 |              | of each section  |
| `vocab`          | Embedding               | some entries    | whole        | whole: the sum   |
| `vocab`          | Linear, the last        | some entries    | whole        | logits of its    |
|                  |                         |                 |              | entries; whole   |
|                  |                         |                 |              | outside of steps |
| `heads`          | nn.MultiheadAttention,  | some heads      | whole        | whole            |
|                  | or one's own attention  |                 |              |                  |
| `sequence`       | a block, a norm         | all parameters  | a piece      | a piece          |

In an attention of one's own Linear layers are `colwise`, but for the one that sums up, which is
`rowwise`. `colwise` of a module of one's own is the same where there are no heads.

A fused projection of queries, keys and values is `fused` where its rows are all queries, all keys,
all values, and `colwise` where heads are outermost, `(heads, 3, d)`.
The code between cut layers leaves the number of heads -1, or reads it from an attribute such as
`self.heads`, which becomes that of this rank. `sequence` counts with `strategy.sequence=true` only:
there its neighbours pass pieces of dimension 1 of (N, T, features) to each other.
"""

import difflib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn

from ...errors import UserError
from .automatic import Automatic
from .checks import check_plan
from .families import STYLES, holds_parameters, is_divided, is_within, styles_within

__all__ = ["check_plan", "find_plan"]


def find_plan(
    module: LightningModule,
    layers: Mapping[str, nn.Module],
    given: Mapping[str, str] | str | None,
    size: int | None = None,
) -> dict[str, str]:
    """What is cut, and how.

    A module within that has a method ``tensor_plan()`` says how it is cut itself: globs of names
    within it, "" for itself, and their styles; what such modules do not hold is found. They may be
    the task, its network, or any layer. Where a plan is given, nothing else counts.

    Args:
        module: The task.
        layers: Those that are looked at, by their full dotted names; {"": module} for all. Where
            they are layers of one sequence, a pair may span two of them.
        given: Globs of module names, with or without the name of the network, and styles; of two
            that fit a name the latter counts. "auto" or None for the module's own plan.
        size: How many ranks share layers. A plan that is found leaves out what they need not share
            and cannot.

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
        plan = Automatic(module, layers, found, plan, size).plan
    held = {
        name: style
        for name, style in _with_children(parts, plan).items()
        if any(is_within(name, layer) for layer in layers)
    }
    return {name: held[name] for name in parts if name in held}


def _with_own_plan(parts: Mapping[str, nn.Module]) -> list[str]:
    found: list[str] = []
    for name, part in parts.items():
        speaks = callable(getattr(part, "tensor_plan", None))
        if speaks and not any(is_within(name, outer) for outer in found):
            found.append(name)
    return found


def _fitting(
    parts: Mapping[str, nn.Module], outer: str, globs: Mapping[str, str], key: str
) -> dict[str, str]:
    """The modules that globs fit, of those within one."""
    within = {name[len(outer) :].lstrip("."): name for name in parts if is_within(name, outer)}
    plan: dict[str, str] = {}
    for glob, style in globs.items():
        if style not in STYLES:
            raise UserError(f"{key}: {glob}={style} is no style; use one of {', '.join(STYLES)}")
        fit = [
            name
            for short, name in within.items()
            if fnmatchcase(short, glob) or (not outer and fnmatchcase(_of_network(short), glob))
        ]
        if not fit:
            names = [name for name, each in within.items() if holds_parameters(parts[each])]
            near = difflib.get_close_matches(glob, [*names, *map(_of_network, names)], 1, 0.0)
            raise UserError(
                f"{key}: {glob} fits no module; use names such as "
                f"{(near or ['those of the network'])[0]}, where * stands for anything, or "
                "strategy.plan=auto"
            )
        plan |= dict.fromkeys(fit, style)
    return plan


def _of_network(name: str) -> str:
    return name.partition(".")[2]


def _with_children(parts: Mapping[str, nn.Module], plan: Mapping[str, str]) -> dict[str, str]:
    """The Linear layers of modules that are cut as a whole, unless they have a style already."""
    full = dict(plan)
    for name, style in plan.items():
        if is_divided(parts[name], style):
            for child, own in styles_within(parts[name]).items():
                full.setdefault(f"{name}.{child}".lstrip("."), own)
    return full
