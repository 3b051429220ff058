"""`callbacks=checkpoint`: Lightning's ModelCheckpoint, with a clock of its own for last.ckpt."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from ..arguments import configured_by
from ..compat.of_lightning import accumulates, callbacks_of, is_epoch_at_its_end
from ..optim.schedulers import steps_done
from .options import BestAndLastOptions
from .remote import LAST, is_address, reject_unwritable


class BestAndLast(ModelCheckpoint):
    """Keeps the best weights by a metric, and last.ckpt, the newest state to resume from.

    After every validation the best are compared and last.ckpt is written; ModelCheckpoint writes it
    only together with one of the best. Between validations it is written every so many steps or
    minutes, whatever comes first. A metric counts only for the weights that it was measured with,
    whenever else (`every_n_train_steps`, ...) a checkpoint is due.

    Either of the two classes loads the state that the other saved.

    The arguments are those of ModelCheckpoint and two more, described in `BestAndLastOptions`. The
    filename "best" gains the epoch and the step where `save_top_k` keeps more than one.
    """

    @configured_by(BestAndLastOptions, "callbacks.checkpoint")
    def __init__(self, options: BestAndLastOptions) -> None:
        ours = ("last_every_n_steps", "last_every_minutes")
        arguments = options.given()
        super().__init__(**{name: value for name, value in arguments.items() if name not in ours})
        if self.filename == "best" and self.save_top_k not in (0, 1):
            named = self.auto_insert_metric_name
            self.filename = "best-{epoch}-{step}" if named else "best-epoch{epoch}-step{step}"
        self.last_every_n_steps = options.last_every_n_steps
        self.last_every_minutes = options.last_every_minutes
        self._last_saved = time.monotonic()
        self._last_saved_at = 0
        self._measured_at: int | None = None
        self._metric_before: Tensor | None = None
        self._saves_elsewhere = (
            self._every_n_train_steps > 0
            or self._train_time_interval is not None
            or self._save_on_train_epoch_end
        )
        self._has_saved_last = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reject an address that cannot be written to before the first step."""
        if stage == "fit" and is_address(self.dirpath) and trainer.is_global_zero:
            reject_unwritable(str(self.dirpath))
        super().setup(trainer, pl_module, stage)

    @property
    def state_key(self) -> str:
        """ModelCheckpoint's, so that either loads the state of the other."""
        return super().state_key.replace(type(self).__qualname__, ModelCheckpoint.__qualname__, 1)

    def format_checkpoint_name(
        self,
        metrics: dict[str, Tensor],
        filename: str | None = None,
        ver: int | None = None,
        prefix: str | None = None,
    ) -> str:
        """Lightning's, with -v1 and so on where one of the best has that name already."""
        path = super().format_checkpoint_name(metrics, filename, ver, prefix)
        version = self.STARTING_VERSION
        while path in self.best_k_models:
            path = super().format_checkpoint_name(metrics, filename, version, prefix)
            version += 1
        return path

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        """Lightning's, unless weights have changed since the metric was measured."""
        is_old = self._measured_at not in (None, trainer.global_step)
        return not is_old and super().check_monitor_top_k(trainer, current)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember the metric, to see whether this validation computes it."""
        self._metric_before = trainer.callback_metrics.get(str(self.monitor))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the best as Lightning does, and last.ckpt in any case."""
        self._has_saved_last = False
        fits = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        metric = trainer.callback_metrics.get(str(self.monitor))
        if fits and metric is not self._metric_before:
            is_new = self._measured_at != trainer.global_step
            self._measured_at = trainer.global_step
            if is_new and self._saves_elsewhere:
                self._save_topk_checkpoint(trainer, self._monitor_candidates(trainer))
        super().on_validation_end(trainer, pl_module)
        if fits and not self._should_save_on_train_epoch_end(trainer):
            self._save_last_unless_saved(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if no validation ran, or if the epoch stopped early."""
        self._has_saved_last = False
        super().on_train_epoch_end(trainer, pl_module)
        complete = is_epoch_at_its_end(trainer)
        cut_short = not complete and trainer.global_step > self._last_saved_at
        if cut_short or (complete and self._should_save_on_train_epoch_end(trainer)):
            self._save_last_unless_saved(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save what is due once the batch is over, with what the task does at its end."""
        end = super().on_train_batch_end

        def save() -> None:
            end(trainer, pl_module, outputs, batch, batch_idx)
            self._save_last_if_due(trainer)

        after_batch(trainer, save)

    def _save_last_if_due(self, trainer: Trainer) -> None:
        """Write last.ckpt between validations, if no gradients are being accumulated."""
        if self.save_last and not accumulates(trainer) and self._is_time(trainer):
            saved_at = self._last_global_step_saved
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))
            # Otherwise a validation after this step would save none of the best.
            self._last_global_step_saved = saved_at

    def _should_remove_checkpoint(self, trainer: Trainer, previous: str, current: str) -> bool:
        """Lightning's, which at an address also removes what is resumed from, or another run's."""
        if not is_address(previous):
            return super()._should_remove_checkpoint(trainer, previous, current)
        is_ours = str(previous).startswith(f"{str(self.dirpath).rstrip('/')}/")
        return is_ours and previous not in (current, str(trainer.ckpt_path))

    def _save_last_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Any]) -> None:
        super()._save_last_checkpoint(trainer, monitor_candidates)
        self._last_saved = time.monotonic()
        self._last_saved_at = trainer.global_step
        self._has_saved_last = True

    def _save_last_unless_saved(self, trainer: Trainer) -> None:
        fast = trainer.fast_dev_run  # type: ignore[attr-defined]
        if self.save_last and not self._has_saved_last and not fast:
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

    def _is_time(self, trainer: Trainer) -> bool:
        if self.last_every_n_steps and steps_done(trainer) % self.last_every_n_steps == 0:
            return True
        if not self.last_every_minutes:
            return False
        # All ranks go by the clock of rank 0.
        due = time.monotonic() - self._last_saved >= 60 * self.last_every_minutes
        return bool(trainer.strategy.broadcast(due))


def after_batch(trainer: Trainer, action: Callable[[], None]) -> None:
    """Do something after the task's own `on_train_batch_end`, called in that of a callback.

    Lightning calls the task's last. What it changes there, as the weights of a momentum teacher, a
    checkpoint would not have, and a resume would not do again. Under Lightning's own strategies
    it is done at once.
    """
    strategy: Any = trainer.strategy
    getattr(strategy, "after_batch", lambda now: now())(action)


def path_of_last(trainer: Trainer, default: Path) -> str | Path:
    """Where a run that is stopped saves: beside checkpoints that are at an address."""
    for callback in callbacks_of(trainer, ModelCheckpoint):
        if is_address(callback.dirpath):
            return f"{str(callback.dirpath).rstrip('/')}/{LAST}"
    return default
