"""Where training stands, as a checkpoint tells it.

Lightning counts a batch after the hooks of its end, and an epoch that is cut short as a whole one;
checkpoints are often asked for before. So a checkpoint has the counters as they are once Lightning
has counted, and a resume reads them as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer

from ..compat.of_lightning import accumulates, is_validation_over, validation_is_due

KEY = "resume"  # of a checkpoint
BATCHES, VALIDATION = "epoch_loop.batch_progress", "epoch_loop.val_loop.batch_progress"


@dataclass(frozen=True)
class Position:
    """Where an epoch continues.

    Attributes:
        epoch: The epoch that continues, or begins.
        batches: Its batches that have been trained on; 0 if it begins.
        rng: The generators' states, as plain data: see `resume`. Empty for plain Lightning's files.
        loaders: Where each loader of training stands: see `passes`. Empty for these files, too.
    """

    epoch: int
    batches: int
    rng: dict[str, Any]
    loaders: list[dict[str, Any] | None]


def reached(loop: Mapping[str, Any]) -> tuple[int, int]:
    """The epoch that continues or begins, and its batches so far, in a state of the fit loop."""
    epoch, batch = loop["epoch_progress"]["current"], loop[BATCHES]["current"]["processed"]
    is_cut_short = batch > 0 and not loop[BATCHES]["is_last_batch"]
    if epoch["processed"] == epoch["ready"] and not is_cut_short:
        return epoch["ready"], 0
    has_begun = epoch["started"] == epoch["ready"]
    return epoch["ready"] - 1, batch if has_begun else 0


def counted(trainer: Trainer, in_step: bool) -> dict[str, Any]:
    """The state of the fit loop, once Lightning has counted what it has trained on.

    Args:
        trainer: The trainer.
        in_step: Whether a batch is at its end, and what follows on it has not begun.
    """
    loop = trainer.fit_loop.state_dict()
    epoch, batches = reached(loop)
    if epoch == loop["epoch_progress"]["current"]["ready"]:
        return loop
    if not batches:
        _begin_again(loop)
        return loop
    is_due = validation_is_due(trainer)
    validates = in_step or (trainer.validating and not is_validation_over(trainer))
    steps = loop["epoch_loop.state_dict"]["_batches_that_stepped"]
    if not accumulates(trainer):
        # Lightning counts a step of the logs behind the validation, also one that a resume passes.
        steps += (in_step or trainer.validating) - is_due
    _count(loop, steps, is_due and validates)
    return loop


def _begin_again(loop: dict[str, Any]) -> None:
    """Let an epoch without a batch begin, with its hooks."""
    for counts in loop["epoch_progress"].values():
        counts["ready"] = counts["started"] = counts["processed"]


def _count(loop: dict[str, Any], steps: int, validates: bool) -> None:
    """Count the batches of an unfinished epoch, and whether a validation comes first."""
    for counts in (loop[BATCHES]["total"], loop[BATCHES]["current"]):
        counts["ready"] = counts["started"] = counts["completed"] = counts["processed"]
    for counts in loop["epoch_progress"].values():
        counts["processed"] = counts["completed"] = counts["ready"] - 1
    loop["epoch_loop.state_dict"]["_batches_that_stepped"] = steps
    for name, counts in loop[VALIDATION].items():
        if name == "is_last_batch":
            continue
        done = 0 if name == "current" and validates else counts["completed"]
        # One batch that was started, and not ended, is for Lightning a validation to be run.
        started = done + (validates and name == "total")
        counts |= {"ready": started, "started": started, "processed": done, "completed": done}


def position_in(checkpoint: dict[str, Any]) -> tuple[Position, dict[str, Any]]:
    """Where a checkpoint was written, and what else of `TrainingEpochs` it has.

    A file of plain Lightning is counted here.
    """
    if KEY in checkpoint:
        saved = dict(checkpoint[KEY])
        position = saved.pop("position")
        loaders = position.get("loaders", [])  # an earlier release had none
        return Position(position["epoch"], position["batches"], position["rng"], loaders), saved
    loop = checkpoint.get("loops", {}).get("fit_loop", {})
    if BATCHES not in loop or "epoch_progress" not in loop:
        return Position(0, 0, {}, []), {}
    epoch, batches = reached(loop)
    if batches:
        _count_plain(loop)
    elif epoch < loop["epoch_progress"]["current"]["ready"]:
        _begin_again(loop)
    return Position(*reached(loop), {}, []), {}


def _count_plain(loop: dict[str, Any]) -> None:
    """Count what plain Lightning wrote in a step, or after an epoch that was cut short."""
    batch, epoch = loop[BATCHES]["current"], loop["epoch_progress"]["current"]
    steps = loop["epoch_loop.state_dict"]["_batches_that_stepped"]
    if epoch["processed"] == epoch["ready"]:
        _count(loop, steps, False)
    elif batch["processed"] > batch["completed"] and loop[BATCHES]["is_last_batch"]:
        # Otherwise Lightning would begin the next epoch without its hooks.
        _count(loop, steps + 1, False)
        for counts in loop["epoch_progress"].values():
            counts["processed"] = counts["completed"] = counts["ready"]
