"""Why training ended before its last epoch, and what lets it go on."""

from typing import NamedTuple

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer


class End(NamedTuple):
    """Of a training run."""

    why: str
    """The key that ended it, a colon, and a sentence."""
    to_go_on: str
    """What to type."""
    is_early: bool = True


def why_ended(trainer: Trainer, keys: dict[str, str]) -> End:
    """What ended training.

    Args:
        trainer: After `fit`.
        keys: The name in the configuration of the callback that watches each metric.
    """
    epochs, steps = trainer.max_epochs or -1, trainer.max_steps
    if 0 < epochs <= trainer.current_epoch:
        why = f"trainer.max_epochs: all {epochs} epochs are done"
        return End(why, f"trainer.max_epochs={2 * epochs}", is_early=False)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for each in callbacks if trainer.should_stop else ():
        if isinstance(each, EarlyStopping) and each.stopping_reason_message:
            name = keys.get(each.monitor, "early_stopping")
            words = each.stopping_reason_message.partition(" Signaling")[0].rstrip(".")
            more = f"callbacks.{name}.patience={2 * each.patience}, or ~callbacks.{name}"
            return End(f"{name}: {words}", more)
        if isinstance(each, Timer) and (each.time_remaining() or 0) <= 0:
            spent = f"{each.time_elapsed():.0f} s"
            return End(f"trainer.max_time: {spent} of training are over", "trainer.max_time=null")
    if 0 < steps <= trainer.global_step:
        why = f"trainer.max_steps: all {steps} steps are made"
        return End(why, f"trainer.max_steps={2 * steps}", is_early=epochs > 0)
    return End("trainer.should_stop: was set by a callback or the task", "trainer.max_epochs=N")
