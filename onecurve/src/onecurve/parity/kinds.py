"""What a difference comes from, most likely, and what to do about it."""

from collections.abc import Sequence

from .rows import END, START, TOLERANCE, Row, points
from .watch import GRADIENT, LOSS, Watch

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
    "may lie between colwise and rowwise, rows of a fused projection have heads outermost, and "
    "nothing else is computed from the number of heads that a rank has",
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
