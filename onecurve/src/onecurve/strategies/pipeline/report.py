"""Reports a partition before training starts: a table, and the timeline of its schedule.

The timeline is a prediction of when each rank computes what, and when it waits: a pass takes as
long as its stage's cost says, a backward pass twice as long as a forward pass (split into input and
weights: once each), and sending takes no time.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from ...figures import new_figure
from .partition import Partition, Stages

if TYPE_CHECKING:
    from rich.table import Table

Kind = Literal["forward", "backward", "weight"]

# PyTorch's names of actions: F, B (full backward), I (backward of the input), W (of the weights).
ACTIONS: dict[str, tuple[Kind, float]] = {
    "F": ("forward", 1.0),
    "B": ("backward", 2.0),
    "I": ("backward", 1.0),
    "W": ("weight", 1.0),
}

COLOURS: dict[Kind, str] = {"forward": "#4c78a8", "backward": "#54a24b", "weight": "#eeca3b"}
IDLE = "#eeeeee"
# In inches: the picture, and two digits.
WIDTH, ROOM_FOR_A_NUMBER = 10.0, 0.15

Pass = tuple[Kind, int, int]
"""The kind of a pass, its stage and its micro-batch."""


class Span(NamedTuple):
    """When a rank computes one pass of one micro-batch through one stage."""

    rank: int
    start: float
    stop: float
    kind: Kind
    stage: int
    microbatch: int


def simulate(order: Mapping[int, Sequence[Any | None]], costs: Sequence[float]) -> list[Span]:
    """When each pass of a schedule starts and stops.

    A forward pass waits for that of the stage before, a backward pass for that of the stage after;
    a rank keeps to its order (`pipeline_order` of PyTorch's schedules). The cost of a stage is the
    time of its forward pass for one micro-batch, in any unit.
    """
    waiting = {rank: _passes(actions) for rank, actions in order.items()}
    spans: list[Span] = []
    free = dict.fromkeys(order, 0.0)
    done: dict[Pass, float] = {}
    while any(waiting.values()):
        before = len(spans)
        for rank, passes in waiting.items():
            while passes:
                (kind, stage, microbatch), units = passes[0]
                need = _need(kind, stage, microbatch, len(costs))
                if need is not None and need not in done:
                    break
                passes.popleft()
                start = free[rank] if need is None else max(free[rank], done[need])
                stop = start + units * costs[stage]
                free[rank] = done[kind, stage, microbatch] = stop
                spans.append(Span(rank, start, stop, kind, stage, microbatch))
        if len(spans) == before:
            raise ValueError("the ranks wait for each other in a circle")
    return spans


def bubble(spans: Sequence[Span]) -> float:
    """The share of all ranks' time in which they wait, between 0 and 1."""
    busy = sum(span.stop - span.start for span in spans)
    ranks = {span.rank for span in spans}
    return 1 - busy / (len(ranks) * max(span.stop for span in spans))


def draw(spans: Sequence[Span], path: Path, title: str) -> Path:
    """Draw ranks × time into a file; the number in a box is that of the micro-batch."""
    # Only the rank that draws needs it.
    from matplotlib.patches import Patch

    ranks = 1 + max(span.rank for span in spans)
    end = max(span.stop for span in spans)
    figure = new_figure(WIDTH, 1.3 + 0.4 * ranks)
    axes = figure.subplots()
    boxes: dict[tuple[int, Kind, float], list[tuple[float, float]]] = defaultdict(list)
    for span in spans:
        length = span.stop - span.start
        # A rank's later stages are paler.
        strength = 1.0 if span.stage < ranks else 0.6
        boxes[span.rank, span.kind, strength].append((span.start, length))
        if length / end * WIDTH > ROOM_FOR_A_NUMBER:
            middle = span.start + length / 2
            axes.text(middle, span.rank, str(span.microbatch), ha="center", va="center", size=6)
    for (rank, kind, strength), where in boxes.items():
        colour = (COLOURS[kind], strength)
        axes.broken_barh(where, (rank - 0.4, 0.8), facecolors=colour, edgecolors="w", linewidth=0.5)
    axes.set_facecolor(IDLE)
    axes.set(xlim=(0, end), ylim=(ranks - 0.4, -0.6), xticks=[], yticks=range(ranks))
    axes.set(xlabel="time, predicted from the layers' costs", ylabel="rank")
    axes.set_title(f"{title}: {bubble(spans):.1%} idle", loc="left", size=10)
    present = {span.kind for span in spans}
    patches = [Patch(color=COLOURS[kind], label=kind) for kind in COLOURS if kind in present]
    patches.append(Patch(color=IDLE, label="idle"))
    figure.legend(handles=patches, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=100)
    return path


def _passes(actions: Sequence[Any | None]) -> deque[tuple[Pass, float]]:
    """The passes of a rank in order, and their costs in units of a forward pass.

    Forward passes are counted instead of read: they come in order everywhere, and PyTorch's own
    numbers (2.15) for those of 1F1B's last stage begin with 1.
    """
    forwards: Counter[int] = Counter()
    passes: deque[tuple[Pass, float]] = deque()
    for stage, letter, microbatch, *_ in filter(None, actions):
        name = getattr(letter, "value", letter)
        if name not in ACTIONS:
            continue
        kind, units = ACTIONS[name]
        if kind == "forward":
            microbatch = forwards[stage]
            forwards[stage] += 1
        passes.append(((kind, stage, microbatch), units))
    return passes


def _need(kind: Kind, stage: int, microbatch: int, num_stages: int) -> Pass | None:
    """The pass that must end before another one can start."""
    if kind == "weight":
        return "backward", stage, microbatch
    if kind == "forward":
        return ("forward", stage - 1, microbatch) if stage > 0 else None
    if stage == num_stages - 1:
        return "forward", stage, microbatch
    return "backward", stage + 1, microbatch


def report_partition(
    trainer: Trainer,
    stages: Stages,
    title: str,
    name: str,
    order: Mapping[int, Sequence[Any]],
    microbatches: int,
    batch_size: int,
    draws: bool,
) -> None:
    """Print the partition; where the strategy has a `report_dir`, draw it and log the picture."""
    partition, layers = stages.partition, stages.layers
    parameters = [sum(p.numel() for p in layer.parameters()) for layer in layers.values()]
    spans = simulate(order, partition.costs)
    strategy: Any = trainer.strategy
    if strategy.prints_layers:
        # What plans, or prints nothing, needs no rich.
        from ...errors import plain_console

        console = plain_console()
        console.print(partition_table(partition, list(layers), parameters, title))
        console.print(
            f"imbalance {partition.imbalance:.2f} (largest stage / mean)\n"
            f"{name}: {microbatches} micro-batches of {batch_size // microbatches}, "
            f"predicted bubble {bubble(spans):.1%}",
            highlight=False,
        )
    if strategy.report_dir is None or not draws:
        return
    # A script that asks for no picture needs nothing that draws.
    from PIL import Image

    caption = f"{name}, {microbatches} micro-batches"
    picture = draw(spans, strategy.report_dir / "pipeline.png", caption)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            pixels = np.asarray(Image.open(picture).convert("RGB"))
            logger.experiment.add_image("pipeline", pixels, dataformats="HWC")


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
