"""Reports a partition before training starts: a table of stages, and how long ranks will wait."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .limits import idle_share
from .partition import Partition, Stages

if TYPE_CHECKING:
    from rich.table import Table


def report_partition(
    stages: Stages, title: str, schedule: str, microbatches: int, batch_size: int
) -> None:
    """Print the partition, and the schedule of its first batch."""
    # What plans, or prints nothing, needs no rich.
    from ...errors import plain_console

    partition, layers = stages.partition, stages.layers
    parameters = [sum(p.numel() for p in layer.parameters()) for layer in layers.values()]
    idle = idle_share(schedule, stages.ranks.sizes.pipeline, microbatches, len(partition.ranges))
    console = plain_console()
    console.print(partition_table(partition, list(layers), parameters, title))
    console.print(
        f"imbalance {partition.imbalance:.2f} (largest stage / mean)\n"
        f"{schedule}: {microbatches} micro-batches of {batch_size // microbatches}, "
        # Each rank takes as long as the slowest.
        f"predicted bubble {1 - (1 - idle) / partition.imbalance:.1%}",
        highlight=False,
    )


def partition_table(
    partition: Partition, names: Sequence[str], parameters: Sequence[int], title: str = "Pipeline"
) -> "Table":
    """A table with a row for each stage: its rank, layers, parameters and share of the cost."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in ("stage", "rank", "layers", "parameters", "cost"):
        table.add_column(name, justify="left" if name == "layers" else "right")
    names = _without_common_parent(names)
    for stage, layers in enumerate(partition.ranges):
        first, last = names[layers[0]], names[layers[-1]]
        span = first if len(layers) == 1 else f"{first} … {last} ({len(layers)})"
        count = sum(parameters[layer] for layer in layers)
        share = partition.costs[stage] / sum(partition.costs)
        table.add_row(str(stage), str(partition.owner[stage]), span, f"{count:,}", f"{share:.1%}")
    return table


def _without_common_parent(names: Sequence[str]) -> list[str]:
    """Drop the prefix that all names share, as in ``network.c1`` and ``network.s2``."""
    parts = [name.split(".") for name in names]
    while len({each[0] for each in parts}) == 1 and all(len(each) > 1 for each in parts):
        parts = [each[1:] for each in parts]
    return [".".join(each) for each in parts]
