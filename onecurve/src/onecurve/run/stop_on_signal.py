"""Stops a training run when it is asked to: one agreed checkpoint, then a clean end.

A signal to any rank only sets a flag. After every step the ranks compare their flags, one step
behind, so that nobody waits for it; once one is set all of them save together and end. Nothing
else happens in a signal handler. Outside of training a signal ends the process as it always does.
"""

import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from ..checkpoint.storage import LocalFiles
from ..compat.of_lightning import accumulates, is_epoch_at_its_end
from .outcome import Stopped
from .stop_signals import SIGNALS


class StopOnSignal(Checkpoint):
    """The flag, the agreement and the checkpoint. Lightning calls this callback among the last.

    Args:
        file: Where to save.
        listening: Where this rank leaves its PID for its agent, see `RunContext`.
    """

    def __init__(self, file: Path, listening: Path | None = None) -> None:
        self.file = file
        self.listens = listening / str(os.getpid()) if listening else None
        self.asked = 0
        self._interrupts = 0
        self._agreed = 0
        self._before: dict[signal.Signals, Any] = {}
        self._votes = torch.zeros(1, dtype=torch.int64)
        self._vote: dist.Work | None = None
        self._group: dist.ProcessGroup | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning has set its own handlers, which talk to other ranks; they are replaced."""
        if trainer.world_size > 1 and dist.get_backend() != "gloo":
            self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._ask)
        if self.listens is not None:
            self.listens.touch()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop if any rank was asked to before the last step, once gradients are used up.

        After the last step of an epoch only what it ends with, such as its validation, comes first.
        """
        if trainer.world_size == 1:
            self._agreed = self.asked
        else:
            self._agreed = max(self._agreed, self._count())
            self._ask_all()
        if self._agreed and not accumulates(trainer):
            if is_epoch_at_its_end(trainer):
                # There may be no time for that.
                trainer.save_checkpoint(self.file)
            else:
                self._stop(trainer, self._agreed)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop if that was waited for."""
        if self._agreed:
            self._stop(trainer, self._agreed)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A signal in the last step counts as well."""
        agreed = self.asked
        if trainer.world_size > 1:
            self._count()
            self._ask_all()
            agreed = self._count()
        self._forget()
        if agreed:
            self._stop(trainer, agreed)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._forget()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = max(self.asked, 1 + SIGNALS.index(signal.Signals(number)))
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            self._forget()
            raise KeyboardInterrupt

    def _ask_all(self) -> None:
        self._votes.fill_(self.asked)
        self._vote = dist.all_reduce(
            self._votes, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )

    def _count(self) -> int:
        if self._vote is None:
            return 0
        self._vote.wait()
        self._vote = None
        return int(self._votes)

    def _stop(self, trainer: Trainer, agreed: int) -> None:
        self._count()
        trainer.save_checkpoint(self.file)
        storage = trainer.strategy.checkpoint_io
        if isinstance(storage, LocalFiles):
            storage.finish()
        raise Stopped(SIGNALS[agreed - 1], trainer.global_step)

    def _forget(self) -> None:
        if self.listens is not None:
            self.listens.unlink(missing_ok=True)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
