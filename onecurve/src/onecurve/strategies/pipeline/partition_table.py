"""What is said about a partition before training starts: a table, and a picture of the schedule."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from rich.table import Table

from ...plain_console import plain_console
from .partition import Partition
from .placement import Placement
from .timeline import bubble, draw, simulate


def report_partition(
    trainer: Trainer,
    placement: Placement,
    name: str,
    order: Mapping[int, Sequence[Any]],
    microbatches: int,
    batch_size: int,
) -> None:
    """Print the partition; where the strategy has a `report_dir`, draw it and log the picture.

    Args:
        trainer: Of this run; its strategy is the pipeline.
        placement: Which rank holds what.
        name: Of the schedule.
        order: What each rank does with a whole batch: see `timeline.simulate`.
        microbatches: How many it cuts the batch into.
        batch_size: Samples that one pipeline gets.
    """
    partition = placement.partition
    parameters = [sum(p.numel() for p in layer.parameters()) for layer in placement.layers.values()]
    spans = simulate(order, partition.costs)
    strategy: Any = trainer.strategy
    console = plain_console()
    console.print(partition_table(partition, list(placement.layers), parameters))
    console.print(
        f"imbalance {partition.imbalance:.2f} (largest stage / mean)\n"
        f"{name}: {microbatches} micro-batches of {batch_size // microbatches}, "
        f"predicted bubble {bubble(spans):.1%}",
        highlight=False,
    )
    if strategy.report_dir is None:
        return
    # A script that asks for no picture needs nothing that draws.
    from PIL import Image

    title = f"{name}, {microbatches} micro-batches"
    picture = draw(spans, strategy.report_dir / "pipeline.png", title)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            pixels = np.asarray(Image.open(picture).convert("RGB"))
            logger.experiment.add_image("pipeline", pixels, dataformats="HWC")


def partition_table(partition: Partition, names: Sequence[str], parameters: Sequence[int]) -> Table:
    """One row a stage: its rank, layers, parameters and share of the cost.

    Args:
        partition: The stages.
        names: Name of each layer.
        parameters: Number of parameters of each layer.
    """
    table = Table(title="Pipeline", title_justify="left")
    table.add_column("stage", justify="right")
    table.add_column("rank", justify="right")
    table.add_column("layers")
    table.add_column("parameters", justify="right")
    table.add_column("cost", justify="right")
    names = _without_common_parent(names)
    for stage, layers in enumerate(partition.ranges):
        first, last = names[layers[0]], names[layers[-1]]
        span = first if len(layers) == 1 else f"{first} … {last} ({len(layers)})"
        count = sum(parameters[layer] for layer in layers)
        share = partition.costs[stage] / sum(partition.costs)
        table.add_row(str(stage), str(partition.owner[stage]), span, f"{count:,}", f"{share:.1%}")
    return table


def _without_common_parent(names: Sequence[str]) -> list[str]:
    """Drop what all names begin with, as in ``network.c1`` and ``network.s2``."""
    shortened = list(names)
    while len({name.partition(".")[0] for name in shortened}) == 1 and all(
        "." in name for name in shortened
    ):
        shortened = [name.partition(".")[2] for name in shortened]
    return shortened
