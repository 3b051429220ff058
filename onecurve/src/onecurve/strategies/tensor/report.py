"""What is said about a plan before training starts: what is cut, and how much that is."""

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
    """Print the plan of a module that is not cut yet."""
    # What prints nothing needs no rich.
    from ...plain_console import plain_console

    console = plain_console()
    whole, held, cut = shares(module, plan, size)
    console.print(plan_table(module, plan, size, sequence))
    console.print(
        f"{cut / whole:.1%} of {whole:,} parameters are cut between {size} ranks; "
        f"each holds {held:,}",
        highlight=False,
    )
    if _has_dropout(module, plan):
        console.print(
            "dropout between cut layers draws the same masks for different features on each rank: "
            "the loss is near that of one process, and not equal",
            highlight=False,
        )


def shares(module: nn.Module, plan: Mapping[str, str], size: int) -> tuple[int, int, int]:
    """Parameters of the module, those that one rank holds, and those that are cut."""
    whole = sum(parameter.numel() for parameter in module.parameters())
    own = {}
    for name, style in plan.items():
        part = module.get_submodule(name)
        for path, parameter in part.named_parameters() if holds_parameters(part) else ():
            own[parameter] = local_numel(style, path, parameter.shape, size)
    cut = {parameter: held for parameter, held in own.items() if held < parameter.numel()}
    numbers = sum(parameter.numel() for parameter in cut)
    return whole, whole - numbers + sum(cut.values()), numbers


def local_numel(style: str, name: str, shape: Sequence[int], size: int) -> int:
    """Numbers of a parameter that one rank holds.

    Args:
        style: Of the module in the plan; any other word for one that is not in it.
        name: The parameter's name within that module, such as "weight" or "out_proj.weight".
        shape: Of the full parameter.
        size: How many ranks share layers.
    """
    numbers = prod(shape)
    is_sharded = style in STYLES and name in STYLES[style].dims
    return numbers // size if is_sharded else numbers


def plan_table(module: nn.Module, plan: Mapping[str, str], size: int, sequence: bool) -> "Table":
    """One row for each style of modules whose names differ by numbers only."""
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
    """Whether something is dropped between cut layers, where ranks draw masks of their own pieces.

    They draw alike for different features, so that the loss is not that of one process.
    """
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
