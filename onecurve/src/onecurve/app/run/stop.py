"""How training stops before its end: by a signal, with a checkpoint, or by a limit.

A signal to any rank only sets a flag. After every step the ranks compare their flags by an
all-reduce that is awaited one step later, so that it costs no time; once a flag is set all ranks
save together and end. Outside of training a signal ends the process as always.
"""

import os
import signal
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, Timer

from ...checkpoint.callback import after_batch, path_of_last
from ...checkpoint.storage import LocalFiles
from ...compat.of_lightning import (
    accumulates,
    callbacks_of,
    is_epoch_at_its_end,
    restore_signal_handlers,
)
from ...launch.context import STOPPING, Stopped
from ...machine import SIGNALS
from ...optim.schedulers import steps_done


class StopOnSignal(Checkpoint):
    """Saves and ends training after a signal. As a Checkpoint it is called among the last.

    For `listening` see `RunContext`.
    """

    def __init__(self, file: Path, listening: Path | None = None) -> None:
        self.file = file
        self.listening = listening
        self.pid_file = listening / str(os.getpid()) if listening else None
        self.requested = 0
        self._interrupts = 0
        self._agreed = 0
        self._before: dict[signal.Signals, Any] = {}
        self._votes = torch.zeros(1, dtype=torch.int64)
        self._vote: dist.Work | None = None
        self._group: dist.ProcessGroup | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace Lightning's signal handlers, which communicate with other ranks."""
        if trainer.world_size > 1 and dist.get_backend() != "gloo":
            self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        if self.pid_file is not None:
            self.pid_file.touch()

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Stop if any rank had a signal before this step, and no gradients are accumulated.

        In the last step of an epoch save, and stop after the validation.
        """
        if trainer.world_size == 1:
            self._agreed = self.requested
        else:
            self._agreed = max(self._agreed, self._finish_vote())
            self._start_vote()
        if self._agreed and not accumulates(trainer):
            after_batch(trainer, partial(self._batch_ended, trainer))

    def _batch_ended(self, trainer: Trainer) -> None:
        if is_epoch_at_its_end(trainer):
            # There may be no time for the validation.
            trainer.save_checkpoint(path_of_last(trainer, self.file))
        else:
            self._stop(trainer, self._agreed)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._agreed:
            self._stop(trainer, self._agreed)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A signal in the last step counts as well."""
        agreed = self.requested
        if trainer.world_size > 1:
            self._finish_vote()
            self._start_vote()
            agreed = self._finish_vote()
        if agreed:
            self._stop(trainer, agreed)
        self._restore_handlers()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """A rank that ends by a signal may get it once more, from its agent."""
        if self.listening is None or not isinstance(exception, Stopped):
            self._restore_handlers()
        if not isinstance(exception, Stopped):
            # Lightning's would send the signal to ranks that may have ended.
            restore_signal_handlers(trainer)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = max(self.requested, 1 + SIGNALS.index(signal.Signals(number)))
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            self._restore_handlers()
            raise KeyboardInterrupt

    def _start_vote(self) -> None:
        self._votes.fill_(self.requested)
        self._vote = dist.all_reduce(
            self._votes, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )

    def _finish_vote(self) -> int:
        if self._vote is None:
            return 0
        self._vote.wait()
        self._vote = None
        return int(self._votes)

    def _stop(self, trainer: Trainer, agreed: int) -> None:
        self._finish_vote()
        if self.listening is not None:
            (self.listening / STOPPING).touch()
        trainer.save_checkpoint(path_of_last(trainer, self.file))
        storage = trainer.strategy.checkpoint_io
        if isinstance(storage, LocalFiles):
            storage.finish()
        raise Stopped(SIGNALS[agreed - 1], steps_done(trainer))

    def _restore_handlers(self) -> None:
        if self.pid_file is not None:
            self.pid_file.unlink(missing_ok=True)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


class EndOfTraining(NamedTuple):
    """Why training ended.

    The reason begins with the key that ended it, and a colon; `to_continue` is the override with
    which a resumed run trains further.
    """

    reason: str
    to_continue: str
    is_early: bool = True


def end_of_training(trainer: Trainer) -> EndOfTraining:
    """Why `fit` ended."""
    epochs, steps = trainer.max_epochs or -1, trainer.max_steps
    if 0 < epochs <= trainer.current_epoch:
        why = f"trainer.max_epochs: all {epochs} epochs are done"
        return EndOfTraining(why, f"trainer.max_epochs={2 * epochs}", is_early=False)
    for each in callbacks_of(trainer, Callback) if trainer.should_stop else ():
        if isinstance(each, EarlyStopping) and each.stopping_reason_message:
            words = each.stopping_reason_message.partition(" Signaling")[0].rstrip(".")
            key = "callbacks.early_stopping"
            more = f"{key}.patience={2 * each.patience}, or ~{key}"
            return EndOfTraining(f"early_stopping: {words}", more)
        if isinstance(each, Timer) and (each.time_remaining() or 0) <= 0:
            # Lightning makes one of `trainer.max_time`.
            spent = f"timer: {each.time_elapsed():.0f} s of training are over"
            longer = "callbacks.timer.duration=DD:HH:MM:SS, with more time"
            return EndOfTraining(spent, f"{longer}, or trainer.max_time=null")
    if 0 < steps <= trainer.global_step:
        why = f"trainer.max_steps: all {steps} steps are made"
        return EndOfTraining(why, f"trainer.max_steps={2 * steps}", is_early=epochs > 0)
    if trainer.limit_train_batches == 0:
        why = "trainer.limit_train_batches: 0 batches are trained on"
        return EndOfTraining(why, "trainer.limit_train_batches=1.0")
    if trainer.num_training_batches == 0:
        return EndOfTraining("data: its training loader has no batch", "data.batch_size=1")
    return EndOfTraining(
        "trainer.should_stop: was set by a callback or the task", "trainer.max_epochs=N"
    )
