"""Reports a plan before training starts: what is sharded, and how much that is."""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from lightning.pytorch import LightningModule
from torch import nn

from .families import STYLES, holds_parameters, is_within

if TYPE_CHECKING:
    from rich.table import Table


def report_plan(
    module: LightningModule, plan: Mapping[str, str], size: int, sequence: bool
) -> None:
    """Print the plan of a module that has not been sharded yet."""
    # Imported here, so that ranks that print nothing do not import rich.
    from ...errors import plain_console

    console = plain_console()
    total, held, sharded = shares(module, plan, size)
    console.print(plan_table(module, plan, size, sequence))
    console.print(
        f"{sharded / total:.1%} of {total:,} parameters are sharded over {size} ranks; "
        f"each holds {held:,}",
        highlight=False,
    )
    if _has_dropout(module, plan):
        console.print(
            "dropout between sharded layers draws the same masks for different features on each "
            "rank: the loss is close to that of one process, but not equal",
            highlight=False,
        )


def shares(module: nn.Module, plan: Mapping[str, str], size: int) -> tuple[int, int, int]:
    """The numbers of parameters in total, on one rank, and sharded."""
    total = sum(parameter.numel() for parameter in module.parameters())
    own = {}
    for name, style in plan.items():
        part = module.get_submodule(name)
        for path, parameter in part.named_parameters() if holds_parameters(part) else ():
            own[parameter] = local_numel(style, path, parameter.shape, size)
    shards = {parameter: held for parameter, held in own.items() if held < parameter.numel()}
    sharded = sum(parameter.numel() for parameter in shards)
    return total, total - sharded + sum(shards.values()), sharded


def local_numel(style: str, name: str, shape: Sequence[int], size: int) -> int:
    """The number of elements that one rank holds of a parameter, by its name within a module.

    The style is any other string if the module is not in the plan.
    """
    numbers = prod(shape)
    is_sharded = style in STYLES and name in STYLES[style].dims
    return numbers // size if is_sharded else numbers


def plan_table(module: nn.Module, plan: Mapping[str, str], size: int, sequence: bool) -> "Table":
    """A table of the plan; modules whose names differ by numbers only share a row."""
    from rich.table import Table

    table = Table(title=f"Tensor parallelism, {size} ranks", title_justify="left")
    table.add_column("modules")
    table.add_column("style")
    table.add_column("parameters", justify="right")
    table.add_column("on each rank", justify="right")
    rows: dict[tuple[str, str], list[int]] = {}
    for name, style in plan.items():
        if style == "sequence" and not sequence:
            continue
        part = module.get_submodule(name)
        row = rows.setdefault((re.sub(r"\d+", "*", name), style), [0, 0, 0])
        row[0] += 1
        if holds_parameters(part):
            for path, parameter in part.named_parameters():
                row[1] += parameter.numel()
                row[2] += local_numel(style, path, parameter.shape, size)
    for (name, style), (number, numbers, held) in rows.items():
        times = f"{name} ({number})" if number > 1 else name
        table.add_row(times, style, *((f"{numbers:,}", f"{held:,}") if numbers else ("", "")))
    return table


def _has_dropout(module: LightningModule, plan: Mapping[str, str]) -> bool:
    for name, part in module.named_modules():
        inside = name in plan or any(
            is_within(name, outer) or outer.rpartition(".")[0] == name.rpartition(".")[0]
            for outer in plan
        )
        drops = isinstance(part, nn.Dropout) and part.p > 0
        attends = getattr(part, "dropout", 0.0) if name in plan else 0.0
        if inside and (drops or (isinstance(attends, float) and attends > 0)):
            return True
    return False
