"""Stops a training run when it is asked to: one agreed checkpoint, then a clean end.

A signal to any rank only sets a flag. After every step the ranks compare their flags, one step
behind, so that nobody waits for it; once one is set all of them save together and end. Nothing
else happens in a signal handler. Outside of training a signal ends the process as it always does.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

# Where ranks were sent different ones, the later in this list is what stopped the run.
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT")
    if hasattr(signal, name)
)

Handler = Callable[[int, FrameType | None], Any]

# Where a rank that torchelastic started leaves its PID while a signal only sets its flag.
listening: Path | None = None


class Stopped(Exception):
    """Training was stopped by a signal, and everything is saved.

    Attributes:
        number: The signal.
        step: Steps that were made.
    """

    def __init__(self, number: int, step: int) -> None:
        super().__init__(number, step)
        self.number = number
        self.step = step


class EndedEarly(Exception):
    """A callback ended training on all ranks, for good.

    Attributes:
        status: What metrics.json is to say instead of "finished".
    """

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class StopOnSignal(Checkpoint):
    """The flag, the agreement and the checkpoint. Lightning calls this callback among the last.

    Args:
        file: Where to save.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
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
        if listening is not None:
            (listening / str(os.getpid())).touch()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop if any rank was asked to before the last step, once gradients are used up."""
        if trainer.world_size == 1:
            self._agreed = self.asked
        else:
            self._agreed = max(self._agreed, self._count())
            self._ask_all()
        if self._agreed and not trainer.fit_loop._should_accumulate():
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
        """Leave signals as they were."""
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
        finish = getattr(trainer.strategy.checkpoint_io, "finish", None)
        if finish is not None:
            finish()
        raise Stopped(SIGNALS[agreed - 1], trainer.global_step)

    def _forget(self) -> None:
        if listening is not None:
            (listening / str(os.getpid())).unlink(missing_ok=True)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


@contextmanager
def passing_on(ranks: Path, processes: int, stop_at_once: Handler) -> Iterator[list[int]]:
    """Pass signals on to the ranks that this process started.

    Args:
        ranks: The folder in which ranks that listen leave their PIDs.
        processes: How many ranks there are.
        stop_at_once: Handler for a signal while not all of them train, and for a second Ctrl-C.

    Yields:
        The signals that were passed on; the list grows.
    """
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        pids = [int(path.name) for path in ranks.iterdir()]
        again = number == signal.SIGINT and number in received
        received.append(number)
        if again or len(pids) < processes:
            stop_at_once(number, frame)
        for pid in pids:
            # Not SIGINT: a terminal has sent that to the ranks as well, and twice means at once.
            os.kill(pid, signal.SIGUSR1 if number == signal.SIGINT else number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
