"""The result of a comparison: differences between two runs, their likely cause, and a remedy."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..errors import for_reader

if TYPE_CHECKING:
    from .runs import Watch

Curve = list[tuple[int, float]]
"""Optimizer step, counted from 1, and value."""
LOSS, GRADIENT = "loss", "gradient norm"

START, END = "weights at the start", "weights at the end"
TOLERANCE = 1e-11
ROUNDED = 1e-4
"""The scale of smaller values in relative differences: the sums they come from were larger."""


class Row(NamedTuple):
    """A row of the table: the largest differences, and the first above the tolerance, if any."""

    quantity: str
    absolute: float
    relative: float
    step: int | None = None
    what: str = ""


def rows_of(plain: "Watch", other: "Watch", tolerance: float) -> Iterator[Row]:
    """The rows for two runs, in the order in which quantities depend on each other."""
    yield _of_weights(START, plain.start, other.start, 0, tolerance)
    for name in dict.fromkeys([LOSS, GRADIENT, *plain.curves, *other.curves]):
        one, two = (run.curves.get(name, []) for run in (plain, other))
        if one or two:
            yield _of_curves(name, one, two, tolerance)
    yield _of_weights(END, plain.end, other.end, plain.step, tolerance)


def row_of_resume(uninterrupted: "Watch", resumed: "Watch", tolerance: float) -> Row:
    """The row that compares a resumed run with the same run without interruption.

    Means over an epoch of training are left out: after a resume Lightning computes them over the
    rest of the epoch.
    """
    after = uninterrupted.save_after or 0
    rows = [_of_weights(END, uninterrupted.end, resumed.end, uninterrupted.step, tolerance)]
    for name in uninterrupted.curves.keys() - uninterrupted.of_epochs:
        again = resumed.curves.get(name, [])
        # Of a validation that was due when the checkpoint was written, and is resumed with.
        due = sum(step == 0 for step, _ in again)
        before = [point for point in uninterrupted.curves[name] if point[0] == after]
        rest = [point for point in uninterrupted.curves[name] if point[0] > after]
        rows.append(_of_curves(name, before[max(0, len(before) - due) :] + rest, again, tolerance))
    differing = [row for row in rows if row.step is not None]
    first = min(differing, key=lambda row: (row.step, row.quantity != LOSS), default=Row("", 0, 0))
    absolute, relative = max(row.absolute for row in rows), max(row.relative for row in rows)
    what = f"{first.quantity} {first.what}".strip()
    return Row(f"resumed after step {after}", absolute, relative, first.step, what)


def points(plain: Curve, other: Curve) -> Iterator[tuple[int, float, float]]:
    """Step, absolute and relative difference of each pair of values; infinite if one is missing."""
    for (step, one), (_, two) in zip(plain, other, strict=False):
        difference = 0.0 if one == two or (math.isnan(one) and math.isnan(two)) else abs(one - two)
        difference = difference if math.isfinite(difference) else math.inf
        scaled = 0 < difference < math.inf
        relative = difference / max(abs(one), abs(two), ROUNDED) if scaled else difference
        yield step, difference, relative
    for step, _ in max(plain, other, key=len)[min(len(plain), len(other)) :]:
        yield step, math.inf, math.inf


def _of_curves(name: str, plain: Curve, other: Curve, tolerance: float) -> Row:
    differences = list(points(plain, other)) or [(0, 0.0, 0.0)]
    absolute, relative = max(each[1] for each in differences), max(each[2] for each in differences)
    for number, (step, _, far) in enumerate(differences):
        if far > tolerance:
            one, two = (repr(c[number][1]) if number < len(c) else "none" for c in (plain, other))
            return Row(name, absolute, relative, step, f"{two} instead of {one}")
    return Row(name, absolute, relative)


def _of_weights(
    name: str, plain: dict[str, Tensor], other: dict[str, Tensor], step: int, tolerance: float
) -> Row:
    """Compare all weights together: the gradient of a single one may be only rounding."""
    if unlike := plain.keys() ^ other.keys():
        return Row(name, math.inf, math.inf, step, f"only one of them has {min(unlike)}")
    sizes = {key: _real(tensor).nan_to_num(0, 0, 0).norm() for key, tensor in plain.items()}
    differences = distances(plain, other)
    if not differences:
        return Row(name, 0.0, 0.0)
    size, absolute = (float(torch.stack([*each.values()]).norm()) for each in (sizes, differences))
    relative = absolute / size if size else absolute
    if relative <= tolerance:
        return Row(name, absolute, relative)
    most = max(differences, key=lambda key: float(differences[key]))
    return Row(name, absolute, relative, step, f"most of all {most}")


def distances(plain: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    """The norm of each difference: infinite of two shapes, 0 of equal infinities, as in a mask."""
    norms = {}
    for key, tensor in plain.items():
        one, two = _real(tensor), _real(other[key])
        if one.shape != two.shape:  # as of a queue whose length depends on the number of ranks
            one, two = one.new_tensor(math.inf), one.new_zeros(())
        same = (one == two) | (one.isnan() & two.isnan())
        difference = (one - two).masked_fill(same, 0.0)
        norms[key] = difference.nan_to_num(math.inf, math.inf, math.inf).norm()
    return norms


def _real(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


LATE_WEIGHTS = "weights that are drawn late"
SAMPLES = "other samples"
RATES = "other learning rates"
SUM = "a sum over samples"
BATCHNORM = "BatchNorm"
DRAWS = "random draws"
MEAN = "a mean over something else than samples"
PLAN = "a plan that shards what cannot be sharded"
POSITIONS = "positions that are combined outside of attention"
GRADIENTS = "gradients that the strategy does not see"
LOGGED = "values that are gathered per rank"
ROUNDING = "rounding that training amplifies"
ACCUMULATED = "batches that are accumulated"
DIGITS = "float32 within the task"
KEPT = "what a step keeps for the next one"
PARTS = "buffers that the network changes for each part of a batch"
RESUME = "state that is not in the checkpoint"
LATE_PARTS = "modules or attributes that are made late"
OF_PARTS = "what forward computes or keeps for a whole batch"
UNKNOWN = "unknown"

AT_MOST = 1e-6
"""The largest relative difference of a loss that can still be rounding, in float64."""

MUCH = 1e-3
"""The same of anything else: weights, and what is logged."""

SEVEN_DIGITS = 1e-5
"""The largest relative difference of values computed in float32, or logged in it."""

TO_DO = {
    LATE_WEIGHTS: "draw them in __init__: when a hook is called they may be sharded already; a "
    "queue or the like is as long for any number of ranks, which share the batch",
    SAMPLES: "shuffle=False shows whether it is their order; disable random numbers in the data "
    "set or in a hook of the batch (augmentation) for the comparison",
    RATES: "a rate depends on trainer.num_devices or the like, as where each device has a batch of "
    "its own: here all devices share the batch, so leave that factor out",
    SUM: "take the mean over samples, or divide by a number that does not depend on the share; if "
    "samples are compared with each other, use self.trainer.strategy.all_samples(tensor)",
    BATCHNORM: "it computes statistics of a rank's share; trainer.sync_batchnorm=true computes "
    "those of the global batch (not under dp and pipeline), and a layer such as GroupNorm needs "
    "none",
    DRAWS: "each rank draws its own (dropout, noise): compare with p=0, or without the noise",
    MEAN: "define weight(targets) if it is over something else, such as tokens without padding; "
    "use self.trainer.strategy.all_samples(tensor) if samples are compared with each other; pad to "
    "one length if padding reaches the loss, as in an LSTM: each rank pads its own share",
    PLAN: "shard less, by strategy.plan={...}, to find the layer: between colwise and rowwise only "
    "elementwise operations are allowed, a fused projection needs the style fused, or heads "
    "outermost, and nothing else may depend on the number of heads that a rank has",
    POSITIONS: "in sharded sequences positions may only be combined in "
    "F.scaled_dot_product_attention (nn.MultiheadAttention: need_weights=False), and "
    "onecurve.positions(inputs) returns them; strategy.context=1 keeps sequences unsharded",
    GRADIENTS: "call self.manual_backward(loss) if a step computes gradients "
    "itself, and add terms that depend on weights alone, such as a penalty, to the loss",
    LOGGED: "training is the same, but logged values are not: log by self.log or a torchmetrics "
    "object, with batch_size=... (MeanMetric: weight=...) if that is not the number of samples; a "
    "function of a mean, such as exp(loss), is not the mean of its values: compute it of the mean",
    ROUNDING: "it begins in the last digit and grows from step to step: with fewer steps, or a "
    "smaller learning rate, nothing else should remain",
    ACCUMULATED: "they make the same step as one batch of all their samples, but a plain "
    "Trainer divides by their number, whatever their sizes; compare without accumulation, with "
    "larger batches",
    DIGITS: "a .float() in the task or its network, as in the losses of transformers, or a "
    "complex64 parameter leaves seven digits whatever the precision, and an optimizer such as Adam "
    "fewer of the weights: compare with tolerance=1e-5 (parity.tolerance=1e-5), with fewer steps, "
    "or with optimizer=sgd",
    KEPT: "a queue, a hidden state, a codebook or a buffer is made of this rank's samples: make it "
    "of all, with self.trainer.strategy.all_samples(tensor), not by torch.distributed, which "
    "counts ranks with the same samples as well",
    PARTS: "change them in training_step, once for each batch, or use strategy=ddp",
    RESUME: "put what a step keeps for the next one into a buffer (persistent=True), or into "
    "on_save_checkpoint, and let a sampler draw the order of an epoch anew, not from the last one",
    LATE_PARTS: "no Trainer, nor a plain one, resumes this task: when a checkpoint is loaded, what "
    "on_fit_start, on_train_start or a step makes is not there yet, and on_train_epoch_start is "
    "not called for the rest of an epoch; make it in __init__, setup or configure_model",
    OF_PARTS: "strategy=dp calls forward for each device's part of a batch: return it for each "
    "sample and take its mean in the step, instead of keeping it in the network, or use "
    "strategy=ddp",
    UNKNOWN: "compare strategy=single: if that differs as well, it is not the parallelism",
}


def kinds_of(rows: Sequence[Row], plain: "Watch", other: "Watch") -> list[str]:
    """The likely causes of the differences: keys of `TO_DO`. The first test that holds decides."""
    first = {row.quantity: row.step for row in rows if row.step is not None}
    resumed = max((row.relative for row in rows if row.quantity.startswith("resumed")), default=0.0)
    of_run = {name: step for name, step in first.items() if not name.startswith("resumed")}
    if not of_run:
        return [RESUME] * bool(first)
    compared = (START, LOSS, GRADIENT, END)
    # What is logged may differ before, without an effect. A step that returns no loss, as in manual
    # optimization, logs it.
    returns = bool(plain.curves[LOSS])
    losses = [step for name, step in of_run.items() if name not in compared]
    of_loss = of_run.get(LOSS) if returns else min(losses, default=None)
    trained = {name: at for name, at in of_run.items() if name in compared or not returns}
    begins = min((trained or of_run).values())
    samples = [step for step, _, far in points(plain.sums, other.sums) if far > TOLERANCE]
    rates = [step for step, _, far in points(plain.rates, other.rates) if far > TOLERANCE]
    largest = max(row.relative for row in rows if not row.quantity.startswith("resumed"))
    is_only_logged = not of_run.keys() & {LOSS, GRADIENT, END}
    most_different = _most_different(plain, other)
    in_buffer = most_different not in plain.parameters
    is_coarse = other.is_coarse and _is_rounding(
        plain, other, in_buffer, SEVEN_DIGITS, SEVEN_DIGITS
    )
    is_rounding = _is_rounding(plain, other, in_buffer, TOLERANCE, AT_MOST)
    of_logged = DRAWS if plain.draws_in_validation else LOGGED
    sharded = [PLAN] * (other.tensor > 1) + [POSITIONS] * (other.context > 1)
    one, two = (
        {name: value for name, value in run.end.items() if name not in plain.parameters}
        for run in (plain, other)
    )
    first_losses = zip(plain.curves[LOSS][:1], other.curves[LOSS][:1], strict=False)
    is_sum = other.shares > 1 and any(
        mean_of_shares and whole / mean_of_shares > 0.9 * other.shares
        for (_, whole), (_, mean_of_shares) in first_losses
    )
    # What a step keeps is in a buffer, or in no checkpoint.
    buffers_differ = _of_weights(END, one, two, 0, TOLERANCE).step is not None
    keeps = len(first) > len(of_run) or buffers_differ
    tests = [
        (START in of_run, [LATE_WEIGHTS]),
        # What a step draws from the common generator changes the order of later epochs.
        (samples and samples[0] <= begins, [SAMPLES] + [DRAWS] * plain.draws),
        (rates and rates[0] <= begins and trained, [RATES]),
        (is_only_logged and largest <= SEVEN_DIGITS, [DIGITS]),
        (is_only_logged, [of_logged]),
        (is_coarse and largest <= MUCH, [DIGITS]),
        (is_rounding and largest <= MUCH, [ROUNDING]),
        (is_sum, [SUM] + [BATCHNORM] * other.batchnorm),
        (other.ignores and other.shares > 1, [MEAN] + [BATCHNORM] * other.batchnorm),
        (
            other.batchnorm or other.drifts or plain.draws,
            [BATCHNORM] * other.batchnorm + [KEPT] * other.drifts + [DRAWS] * plain.draws,
        ),
        (
            other.accumulates or sharded,
            [ACCUMULATED] * other.accumulates
            + sharded
            + [KEPT] * bool(sharded and buffers_differ)
            + [MEAN] * bool(sharded and other.shares > 1),
        ),
        (buffers_differ and other.shares == 1, [PARTS]),
        (not of_run.keys() & {LOSS, GRADIENT} and most_different in one, [KEPT]),
        (of_loss == begins and other.shares > 1, [KEPT if begins > 1 and keeps else MEAN]),
        (other.splits and of_loss == begins, [OF_PARTS]),
        (of_run.get(GRADIENT) == begins != of_loss, [GRADIENTS]),
    ]
    kinds = next((kinds for holds, kinds in tests if holds), [UNKNOWN])
    # Weights that are drawn late are drawn again on a resume.
    return kinds + [RESUME] * (resumed > MUCH and kinds != [LATE_WEIGHTS])


def _is_rounding(
    plain: "Watch", other: "Watch", in_buffer: bool, at_first: float, later: float
) -> bool:
    """Whether the curves begin within the first limit, and the losses remain within the second.

    Where neither curve leaves the first limit, only an optimizer can have amplified the rounding,
    and that changes no buffer (`in_buffer`: the weights differ most in one).
    """
    losses, norms = (
        [far for _, _, far in points(plain.curves[name], other.curves[name])]
        for name in (LOSS, GRADIENT)
    )
    if max([*losses[:1], *norms[:1]], default=0.0) > at_first or max(losses, default=0.0) > later:
        return False
    grows = max([*losses, *norms], default=0.0) > at_first
    return any(far > 0 for far in losses + norms) and (grows or not in_buffer)


def _most_different(plain: "Watch", other: "Watch") -> str:
    """The name of what differs most of all at the end."""
    differences = distances(plain.end, other.end) if plain.end.keys() == other.end.keys() else {}
    return max(differences, key=lambda key: float(differences[key]), default="")


@dataclass(repr=False)
class Parity:
    """The comparison of a strategy with a plain Trainer.

    Attributes:
        title: What was compared.
        rows: A row for each quantity.
        kinds: The likely causes of differences: keys of `TO_DO`.
        plain: The curves of the plain Trainer, by quantity.
        other: The curves of the strategy.
    """

    title: str
    rows: list[Row] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    plain: dict[str, Curve] = field(default_factory=dict)
    other: dict[str, Curve] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether no quantity differs."""
        return all(row.step is None for row in self.rows)

    def table(self) -> str:
        """All rows, the first difference, its likely cause, and a remedy."""
        width = max(len(row.quantity) for row in self.rows)
        lines = [f"{'':{width}}  absolute  relative"]
        for row in self.rows:
            end = "equal" if row.step is None else f"differs from step {row.step} on"
            lines.append(f"{row.quantity:{width}}  {row.absolute:8.1e}  {row.relative:8.1e}  {end}")
        if self.equal:
            return "\n".join([*lines, f"{self.title}: equal"])
        first = min((r for r in self.rows if r.step is not None), key=lambda row: row.step or 0)
        lines.append(f"{self.title}: first {first.quantity} in step {first.step}, {first.what}")
        return "\n".join(
            [*lines, *(f"Likely {each}: {for_reader(TO_DO[each])}." for each in self.kinds)]
        )

    def __repr__(self) -> str:
        """The table, for `print` and for a notebook."""
        return self.table() if self.rows else self.title
