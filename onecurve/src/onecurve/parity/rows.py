"""How far two runs are apart, quantity by quantity."""

import math
from collections.abc import Iterator
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
