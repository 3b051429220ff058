"""One step of a task on this rank's share of a global batch: `run_step`.

Each rank's loss is multiplied by ``share * ranks / total``, so that the mean over ranks, as
DistributedDataParallel computes it, is the mean over samples, even if shares differ by a sample. If
a task defines `weight` (`weight.py`), that replaces the number of samples. A step with several
training loaders counts the samples of all of them.

Not exact: with several loaders, a sum of their means if the ranks cannot share the batches evenly
(a line says so). Also what a task sums up in Python by itself, outside of metrics and `self.log`: a
rank without a sample in a step is given one of another rank's, which counts nowhere else.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.layer_sync import LayerSync
from torch import Tensor

from ..batch.random import Draws, RankStream
from ..batch.share import GlobalBatch, GlobalBatches, Share
from ..compat.of_lightning import ends_batch
from ..compat.patches import replaced
from .differences import FirstStep
from .mesh.ranks import Ranks
from .prepare import Prepared, PreparedEarly, Window, no_loss, rows, weighs, weight_of
from .step_log import StepLog, metrics_kept

if TYPE_CHECKING:
    from .parallelism import Applied


@dataclass(frozen=True)
class StepContext:
    """What a step knows of its batch: made once, by `context_of`, and passed down.

    Attributes:
        name: "training_step", "validation_step", "test_step" or "predict_step".
        batch: The global batch, and its position in the run, which seeds what this rank draws.
        samples: Samples of the batch on all ranks.
        share: This rank's share of it; None if ranks do not share it.
        early: Inputs and targets of the share, if they are known before the step.
        counted: What the task's `weight` counts in the share; None without such a method.
        total: What the batch counts on all ranks: samples, or what `weight` counts.
        weight: The factor for this rank's loss and values in a mean over the ranks.
        window: The factor for the loss of one of several accumulated batches.
    """

    name: str
    batch: GlobalBatch
    samples: int
    share: Share | None
    early: PreparedEarly | None
    counted: Tensor | None
    total: float | Tensor
    weight: float
    window: float = 1.0

    @property
    def prepared(self) -> Prepared | None:
        """Inputs and targets of the share, if they are known."""
        return None if self.early is None else self.early.result

    @property
    def counts(self) -> bool:
        """Whether the samples are this rank's; if not, they are another's, and count there."""
        return self.share is None or self.share.size > 0

    @property
    def rows(self) -> int | None:
        """Rows of this rank's tensors; None if they come from several loaders."""
        if self.share is None:
            return self.samples
        return None if self.share.is_of_several else max(1, self.share.size)


def run_step(steps: "Steps", name: str, *args: Any) -> Any:
    """Run a step of the task: weigh its batch, draw for it, and log what it logs.

    Args:
        steps: What all steps of a fit or an evaluation have in common.
        name: The step: see `StepContext`.
        args: The batch, and what else Lightning passes.
    """
    task, batch = steps.task, args[0]
    context = context_of(steps, name, batch)
    step: Callable[[], Any] = partial(steps.call, context, *args)
    for axis in reversed(steps.axes):
        step = partial(axis.around, task, context, step)
    with steps.running(context), ExitStack() as around:
        if context.early is not None:
            around.enter_context(context.early.returned_once(steps.stream))
        if context.counted is not None and not context.counted:  # as in a share that is all padding
            around.enter_context(replaced(task, "loss", no_loss))
        if not context.counts:
            around.enter_context(metrics_kept(task))
        if name != "predict_step" and steps.log is not None:
            around.enter_context(steps.log.step(context))
        if steps.ranks is not None:
            around.enter_context(steps.stream.of_rank(Draws.STEP, *context.batch.position))
            if name == "training_step":
                around.enter_context(steps.first.training(batch))
        return step()


def context_of(steps: "Steps", name: str, batch: Any) -> StepContext:
    """Take this rank's share of the batch under way, prepare it, and weigh it."""
    task, size = steps.task, steps.size
    of_all = steps.batches.take(task.trainer)
    steps.first.compare(of_all.loaders, of_all.shares)
    share = of_all.share
    early = prepared = counted = None
    if steps.ranks is not None or weighs(task):
        with steps.precision():
            early = PreparedEarly(task, batch, share and share.computed)
        prepared = early.result
        if name != "predict_step":
            counted = weight_of(task, batch if prepared is None else prepared.targets)
    samples = rows(batch) if of_all.samples is None else of_all.samples
    total: float | Tensor = samples
    weight = 1.0 if share is None else share.size * size / share.total
    if counted is not None:
        total = counted
        if size > 1:
            here = float(counted) if share is None or share.size else 0.0
            total = steps.sum(here)
            weight = here * size / total if total else 1.0
    return StepContext(name, of_all, samples, share, early, counted, total, weight)


class Steps:
    """Runs the steps of a task, and holds the context of the current one.

    Lightning separates a step from its backward pass, from its optimizer's closure and from the
    hooks that end a batch, and passes a batch to none of them. So the context of the last step is
    kept here, and only here: it is replaced, never changed.

    Args:
        ranks: The ranks of the run; None in one process.
        stream: This rank's random numbers.
        call: Calls the step of the task through Lightning.
        precision: Enters Lightning's precision for a forward pass.

    Attributes:
        rank, size: This rank's number among the ranks that see different samples, and theirs.
        axes: What parallelisms do in a step, from the outermost to the innermost.
        current: The context of the step under way, or of the last one.
        is_running: Whether a step is under way; if not, its backward pass or a hook after it.
        samples_seen: Training samples that all ranks have processed since this process began.
    """

    task: LightningModule
    first: FirstStep
    current: StepContext | None = None
    is_running: bool = False
    axes: Sequence["Applied"] = ()
    samples_seen: int = 0
    _window: Window | None = None
    # The number of the last training batch whose samples were counted.
    _counted: int = 0

    def __init__(
        self,
        ranks: Ranks | None,
        stream: RankStream,
        call: Callable[..., Any],
        precision: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.ranks, self.stream = ranks, stream
        self.call, self.precision = call, precision
        self.rank = 0 if ranks is None else ranks.data_parallel_rank
        self.size = 1 if ranks is None else ranks.sizes.data_parallel
        self.batches, self.log = GlobalBatches(), None if ranks is None else StepLog(ranks)

    def begin(
        self,
        task: LightningModule,
        name: str,
        layer_sync: LayerSync | None,
    ) -> None:
        """Start a fit or an evaluation under the strategy `name`."""
        self.task = task
        self.first = FirstStep(task, name, self.ranks, self.stream, layer_sync)
        self.current = self._window = None
        self._counted = 0

    def set_up(self, axes: Sequence["Applied"]) -> None:
        """Redirect the task's `self.log`, if needed; call it after the task's set-up hooks."""
        self.axes = axes
        if self.log is not None:
            self.log.install(self.task)

    def end(self) -> None:
        """End a fit or an evaluation: restore the task."""
        if self.log is not None:
            self.log.remove()

    # Batches

    def begin_evaluation(self) -> None:
        """Count the batches of each loader from 0."""
        self.batches.begin_evaluation()

    def moving(self, dataloader_idx: int) -> AbstractContextManager[None]:
        """Draw this rank's own random numbers for a batch that is moved to the device."""
        trainer = self.task.trainer
        self.batches.moves(trainer, dataloader_idx)
        if self.ranks is None:
            return nullcontext()
        return self.stream.of_rank(Draws.BATCH, *self.batches.position(trainer))

    # Steps

    @contextmanager
    def running(self, context: StepContext) -> Iterator[None]:
        """Within this context a step is under way."""
        self.current, self.is_running = context, True
        try:
            yield
        finally:
            self.is_running = False

    def train(self, *args: Any) -> Any:
        """Run the training step. What it returns is not weighted yet, because hooks see it."""
        window = self._window = self._accumulated()
        output = run_step(self, "training_step", *args)
        assert self.current is not None
        self._count_samples(self.current)
        if window is not None:
            factor = window.factor(0.0 if output is None else float(self.current.total))
            self.current = replace(self.current, window=factor)
        return output

    def predict(self, *args: Any) -> Any:
        """Run a prediction step; None if this rank has no sample of the batch."""
        output = run_step(self, "predict_step", *args)
        return output if self.current is not None and self.current.counts else None

    def _accumulated(self) -> Window | None:
        """The batches that the current one is accumulated with."""
        trainer = self.task.trainer
        if trainer.accumulate_grad_batches == 1:
            return None
        # Lightning clears the gradients at the same batches.
        is_first = trainer.fit_loop.batch_idx % trainer.accumulate_grad_batches == 0
        return self._window if self._window is not None and not is_first else Window(self.task)

    def _count_samples(self, context: StepContext) -> None:
        """Count the samples of a training batch once, even if several steps train on it."""
        context.batch.trained()
        number = context.batch.position[0]
        if number == self._counted:
            return
        self._counted = number
        self.samples_seen += context.samples

    # Means over ranks

    def sum(self, value: float) -> float:
        """The sum over the ranks that see different samples."""
        if self.ranks is None or self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.ranks.device)
        dist.all_reduce(total, group=self.ranks.samples_group)
        return float(total)

    @property
    def weight_in_means(self) -> float:
        """The factor for this rank's values in a mean over ranks: 1 outside of steps."""
        context = self.current
        if context is None or not (self.is_running or ends_batch(self.task)):
            return 1.0
        return context.weight

    def weighed(self, loss: Tensor) -> Tensor:
        """Weight a loss right before its backward pass."""
        context = self.current
        if context is None:
            return loss
        factor = context.weight * context.window
        if any(axis.has_weighed() for axis in self.axes):
            factor = context.window
        elif not self.task.automatic_optimization and not self.is_running:
            factor = 1.0
        return loss if factor == 1.0 else loss * factor
