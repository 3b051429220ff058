"""What a comparison has found: how far two runs are apart, why most likely, and what to do."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .watch import GRADIENT, LOSS, Curve, Watch

START, END = "weights at the start", "weights at the end"
TOLERANCE = 1e-11
ROUNDED = 1e-4
"""A value below is not measured by itself: the sums that it comes from were larger."""


class Row(NamedTuple):
    """A line of the table: the largest differences, and the first above the tolerance, if any."""

    quantity: str
    absolute: float
    relative: float
    step: int | None = None
    what: str = ""


def rows_of(plain: Watch, other: Watch, tolerance: float) -> Iterator[Row]:
    """The lines of two runs, in the order in which quantities follow from each other."""
    yield _of_weights(START, plain.start, other.start, 0, tolerance)
    for name in dict.fromkeys([LOSS, GRADIENT, *plain.curves, *other.curves]):
        one, two = (run.curves.get(name, []) for run in (plain, other))
        if one or two:
            yield _of_curves(name, one, two, tolerance)
    yield _of_weights(END, plain.end, other.end, plain.step, tolerance)


def row_of_resume(whole: Watch, resumed: Watch, tolerance: float) -> Row:
    """The line of a run that was resumed, beside the same that was not interrupted.

    Means over an epoch of training are left out: Lightning takes them of what follows a resume.
    """
    after = whole.save_after or 0
    rows = [_of_weights(END, whole.end, resumed.end, whole.step, tolerance)]
    for name in whole.curves.keys() - whole.of_epochs:
        rest = [(step, value) for step, value in whole.curves[name] if step > after]
        rows.append(_of_curves(name, rest, resumed.curves.get(name, []), tolerance))
    apart = [row for row in rows if row.step is not None]
    first = min(apart, key=lambda row: (row.step, row.quantity != LOSS), default=Row("", 0, 0))
    absolute, relative = max(row.absolute for row in rows), max(row.relative for row in rows)
    what = f"{first.quantity} {first.what}".strip()
    return Row(f"resumed after step {after}", absolute, relative, first.step, what)


def points(plain: Curve, other: Curve) -> Iterator[tuple[int, float, float]]:
    """Step, absolute and relative difference of each two values; infinite where one is missing."""
    for (step, one), (_, two) in zip(plain, other, strict=False):
        apart = 0.0 if one == two or (math.isnan(one) and math.isnan(two)) else abs(one - two)
        apart = apart if math.isfinite(apart) else math.inf
        scaled = 0 < apart < math.inf
        relative = apart / max(abs(one), abs(two), ROUNDED) if scaled else apart
        yield step, apart, relative
    for step, _ in max(plain, other, key=len)[min(len(plain), len(other)) :]:
        yield step, math.inf, math.inf


def _of_curves(name: str, plain: Curve, other: Curve, tolerance: float) -> Row:
    found = list(points(plain, other)) or [(0, 0.0, 0.0)]
    absolute, relative = max(each[1] for each in found), max(each[2] for each in found)
    for number, (step, _, far) in enumerate(found):
        if far > tolerance:
            one, two = (repr(c[number][1]) if number < len(c) else "none" for c in (plain, other))
            return Row(name, absolute, relative, step, f"{two} instead of {one}")
    return Row(name, absolute, relative)


def _of_weights(
    name: str, plain: dict[str, Tensor], other: dict[str, Tensor], step: int, tolerance: float
) -> Row:
    """By the size of all of them: one may have no gradient but rounding."""
    if unlike := plain.keys() ^ other.keys():
        return Row(name, math.inf, math.inf, step, f"only one of them has {min(unlike)}")
    sizes = {key: tensor.double().norm() for key, tensor in plain.items()}
    apart = {key: (plain[key].double() - other[key].double()).norm() for key in plain}
    if not apart:
        return Row(name, 0.0, 0.0)
    size, absolute = (float(torch.stack([*each.values()]).norm()) for each in (sizes, apart))
    relative = absolute / size if size else absolute
    if relative <= tolerance:
        return Row(name, absolute, relative)
    most = max(apart, key=lambda key: float(apart[key]))
    return Row(name, absolute, relative, step, f"most of all {most}")


LATE_WEIGHTS = "weights that are drawn late"
SAMPLES = "other samples"
BATCHNORM = "BatchNorm"
DRAWS = "random draws"
MEAN = "a mean over something else than samples"
PLAN = "a plan that cuts what has no parts"
POSITIONS = "positions that meet outside of attention"
GRADIENTS = "gradients that the strategy does not see"
LOGGED = "values that are gathered per rank"
ROUNDING = "rounding that training amplifies"
ACCUMULATED = "batches that are accumulated"
DIGITS = "float32 within the task"
RESUME = "state that is not in the checkpoint"
UNKNOWN = "unknown"

AT_MOST = 1e-6
"""The relative difference of a loss that may still be called rounding, in float64."""

SEVEN_DIGITS = 1e-5
"""That of what was computed in float32, once an optimizer has amplified it."""

TO_DO = {
    LATE_WEIGHTS: "draw them in __init__: when a hook is called they may be sharded already",
    SAMPLES: "shuffle=False shows whether it is their order; leave out of the comparison what "
    "draws random numbers in the data set or a hook of the batch (augmentation)",
    BATCHNORM: "it takes the statistics of a rank's share; on GPUs trainer.sync_batchnorm=true "
    "takes those of all, and a layer such as GroupNorm needs none",
    DRAWS: "each rank draws its own (dropout, noise): compare with p=0, or without the noise",
    MEAN: "add weight(targets) where something else counts, such as tokens that are no padding; "
    "take self.trainer.strategy.all_samples(tensor) where samples are compared with each other; "
    "divide a sum by a number that does not depend on the share",
    PLAN: "cut less, by strategy.plan={...}, to find which: nothing but what works on each feature "
    "may lie between colwise and rowwise, a fused projection has the style fused, or heads "
    "outermost, and nothing else is computed from the number of heads that a rank has",
    POSITIONS: "on pieces of a sequence they may meet in F.scaled_dot_product_attention alone "
    "(nn.MultiheadAttention: need_weights=False), and onecurve.positions(inputs) tells which they "
    "are; strategy.context=1 leaves sequences whole",
    GRADIENTS: "call self.manual_backward(loss) or loss.backward() where a step makes gradients "
    "itself, and let what depends on weights alone, such as a penalty, be part of the loss",
    LOGGED: "training is the same, and what it tells is not: log by self.log or a torchmetrics "
    "object, with batch_size=... (MeanMetric: weight=...) where that is not the number of samples",
    ROUNDING: "it begins in the last digit and grows from step to step: fewer steps, or a smaller "
    "learning rate, show that there is nothing else",
    ACCUMULATED: "they make the step that one batch of all their samples would make: a plain "
    "Trainer divides by their number, whatever their sizes, and logs the values of the last one; "
    "compare without, in batches that are as much larger",
    DIGITS: "a .float() in it or in its network, as in the losses of transformers, leaves seven "
    "digits whatever the precision: tolerance=1e-5 (parity.tolerance=1e-5) compares these",
    RESUME: "put what a step leaves for the next one into a buffer, or into on_save_checkpoint",
    UNKNOWN: "compare strategy=single: if that is apart as well, it is not the parallelism; what a "
    "step keeps for the next one (a queue, a hidden state) is of its rank's share",
}


def kinds_of(rows: Sequence[Row], plain: Watch, other: Watch) -> list[str]:
    """What the differences between the plain Trainer's run and the other one come from."""
    first = {row.quantity: row.step for row in rows if row.step is not None}
    of_run = {name: step for name, step in first.items() if not name.startswith("resumed")}
    if not of_run:
        return [RESUME] * bool(first)
    if START in of_run:
        return [LATE_WEIGHTS]
    begins = min(of_run.values())
    apart = [step for step, _, far in points(plain.sums, other.sums) if far > TOLERANCE]
    if apart and apart[0] <= begins:
        return [SAMPLES]
    only_logged = not of_run.keys() & {LOSS, GRADIENT, END}
    if (only_logged or other.is_coarse) and _largest(rows) <= SEVEN_DIGITS:
        return [DIGITS]
    if only_logged:
        return [ACCUMULATED if other.accumulates else LOGGED]
    if _is_rounding(plain, other):
        return [ROUNDING]
    if found := [BATCHNORM] * other.batchnorm + [DRAWS] * plain.draws:
        return found
    if found := [PLAN] * (other.tensor > 1) + [POSITIONS] * (other.context > 1):
        return found
    if other.accumulates:
        return [ACCUMULATED]
    if of_run.get(LOSS) == begins and other.shares > 1:
        return [MEAN]
    if of_run.get(GRADIENT) == begins != of_run.get(LOSS):
        return [GRADIENTS]
    return [UNKNOWN]


def _largest(rows: Sequence[Row]) -> float:
    """The largest relative difference between the two runs."""
    return max(row.relative for row in rows if not row.quantity.startswith("resumed"))


def _is_rounding(plain: Watch, other: Watch) -> bool:
    """Whether losses are apart a little before they are apart too much, and never by much."""
    apart = [far for _, _, far in points(plain.curves[LOSS], other.curves[LOSS])]
    small = [far for far in apart if 0 < far <= TOLERANCE]
    return bool(small) and apart[0] <= TOLERANCE and max(apart) <= AT_MOST


@dataclass
class Parity:
    """The numbers of a strategy beside those of a plain Trainer.

    Attributes:
        title: What was compared.
        rows: A line for each quantity.
        kinds: What the differences come from, most likely: keys of `TO_DO`.
        plain: The curves of the plain Trainer, by quantity.
        other: Those of the strategy.
    """

    title: str
    rows: list[Row] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    plain: dict[str, Curve] = field(default_factory=dict)
    other: dict[str, Curve] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether no quantity is apart."""
        return all(row.step is None for row in self.rows)

    def table(self) -> str:
        """All lines, the first difference, what it likely comes from, and what to do."""
        width = max(len(row.quantity) for row in self.rows)
        lines = [f"{'':{width}}  absolute  relative"]
        for row in self.rows:
            end = "equal" if row.step is None else f"differs from step {row.step} on"
            lines.append(f"{row.quantity:{width}}  {row.absolute:8.1e}  {row.relative:8.1e}  {end}")
        if self.equal:
            return "\n".join([*lines, f"{self.title}: equal"])
        first = min((r for r in self.rows if r.step is not None), key=lambda row: row.step or 0)
        lines.append(f"{self.title}: first {first.quantity} in step {first.step}, {first.what}")
        return "\n".join([*lines, *(f"Likely {kind}: {TO_DO[kind]}." for kind in self.kinds)])

    def draw(self, path: str | Path) -> None:
        """Write a page with the curves of the loss, and all differences by step."""
        from plotly.subplots import make_subplots

        titles = ("loss", "relative difference")
        figure = make_subplots(rows=2, cols=1, shared_xaxes=True, subplot_titles=titles)
        for name, curves, dash in (("plain", self.plain, "solid"), ("strategy", self.other, "dot")):
            x, y = zip(*curves.get(LOSS) or [(0, 0.0)], strict=True)
            figure.add_scatter(x=x, y=y, name=name, line_dash=dash, row=1, col=1)
        for name, curve in self.plain.items():
            found = points(curve, self.other.get(name, []))
            x, y = zip(*((step, max(far, 1e-17)) for step, _, far in found), strict=True)
            figure.add_scatter(x=x, y=y, name=name, mode="lines+markers", row=2, col=1)
        figure.update_yaxes(type="log", exponentformat="power", row=2, col=1)
        figure.update_layout(title=self.title, template="plotly_white", height=800)
        figure.write_html(path)
