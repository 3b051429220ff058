"""The predicted timeline of a schedule: when each rank computes what, and when it waits.

A pass takes as long as its stage's cost says, a backward pass twice as long as a forward pass
(split into input and weights: once each), and sending takes no time.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

Kind = Literal["forward", "backward", "weight"]

# PyTorch's names of actions: F, B (full backward), I (backward of the input), W (of the weights).
ACTIONS: dict[str, tuple[Kind, float]] = {
    "F": ("forward", 1.0),
    "B": ("backward", 2.0),
    "I": ("backward", 1.0),
    "W": ("weight", 1.0),
}

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
