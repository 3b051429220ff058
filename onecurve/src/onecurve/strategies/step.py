"""Runs a task's steps on this rank, and weights each loss by this rank's share of the batch.

Each rank has a share of every global batch. Its loss is scaled by ``share * ranks / total``, so
that the mean over ranks, as DistributedDataParallel computes it, is the mean over samples, even if
shares differ by a sample. If a task defines `weight` (`weight.py`), that replaces the number of
samples. A step with several training loaders counts the samples of all of them.

Not exact: with several loaders, a sum of their means if the ranks cannot share the batches evenly
(a line says so). Also what a task sums up in Python by itself, outside of metrics and `self.log`: a
rank without a sample in a step is given one of another rank's, which counts nowhere else.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor

from ..batch.loader import UnsharedLoader, size_of_batch
from ..batch.random import Draws, RankStream, State, are_equal, get_state
from ..batch.resume import TrainingEpochs
from ..batch.share import (
    Share,
    SharedLoader,
    combined_share,
    loaders_in_step,
    share_of,
    shared_in_step,
    uneven_shares,
)
from ..compat.of_lightning import ends_batch, loaders_of, loaders_under_way, starts_again
from ..compat.patching import replaced
from ..errors import UserError, say
from .mesh.ranks import Ranks, each_rank_has
from .prepare import Prepared, prepared, prepared_once, prepares
from .step_log import StepLog, metrics_kept
from .weight import Window, ignores_labels, no_loss, rows, weighs, weight_of


class TaskStep:
    """Runs the steps of a task, and owns the state of the current one.

    Args:
        call: Calls a step of the task by its name.
        context: Enters Lightning's precision for a forward pass.

    Attributes:
        ranks: The ranks of the run; None in one process.
        rank, size: This rank's number among the ranks that see different samples, and theirs.
        epochs: The epochs of the current fit; None in an evaluation.
        samples_seen: Training samples that all ranks have processed since this process began.
        share: This rank's share of the current training batch; None if ranks do not share it.
        samples: Samples of that batch, if its loaders tell.
        weight: The factor for this rank's loss.
        weigh: Multiplies a loss by the factor.
        prepared: Inputs and targets of the current batch, if they are known.
        is_running: Whether a step of the task is under way.
        evaluated: In an evaluation the number of the loader, the number of the batch, and this
            rank's share of it; the share is None if ranks do not share the batch.
    """

    module: LightningModule
    name: str
    epochs: TrainingEpochs | None = None
    samples_seen: int = 0
    share: Share | None = None
    samples: int | None = None
    weight: float = 1.0
    prepared: Prepared | None = None
    is_running: bool = False
    evaluated: tuple[int, int, Share | None] = (0, 0, None)
    # The factor of the batch of the last step.
    _batch_weight: float = 1.0
    # What `scaled` multiplies the loss of the current step by.
    _of_share: float = 1.0
    _of_window: float = 1.0
    # The count of the current batch over all ranks, and the window that accumulates it.
    _count: float | Tensor | None = None
    _window: Window | None = None
    # The number of the last training batch whose samples were counted.
    _counted: int = 0
    _reported_uneven: bool = False
    _looks_for_draws: bool = False
    _looks_for_ignored: bool = False

    def __init__(
        self,
        ranks: Ranks | None,
        stream: RankStream,
        call: Callable[..., Any],
        context: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.ranks = ranks
        self.rank = 0 if ranks is None else ranks.data_parallel_rank
        self.size = 1 if ranks is None else ranks.sizes.data_parallel
        self.stream = stream
        self.weigh: Callable[[Tensor, float], Tensor] = torch.mul
        self._call = call
        self._context = context
        self._logs = StepLog(ranks)
        # How many batches of each loader an evaluation has moved to the device.
        self._moved: Counter[int] = Counter()

    def begin(self, module: LightningModule, name: str, epochs: TrainingEpochs | None) -> None:
        """Start a fit or an evaluation."""
        self.module, self.name, self.epochs = module, name, epochs
        self._counted = 0
        self._window = None
        self._looks_for_draws = self.ranks is not None and Draws.STEP in self.stream.apart
        self._looks_for_ignored = self.size > 1

    def patch(self) -> None:
        """Redirect the task's `self.log`, if needed; call it after the task's set-up hooks."""
        if self.ranks is not None or weighs(self.module):
            self._logs.install(self.module)

    def end(self) -> None:
        """End a fit or an evaluation: restore the task."""
        self._logs.remove()
        self.epochs = None

    def own(self, what: Draws) -> AbstractContextManager[None]:
        """Draw this rank's own random numbers for the current batch within the context."""
        trainer = self.module.trainer
        batches = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        return self.stream.own(what, batches, *(() if trainer.training else self.evaluated[:2]))

    # Training

    def train_accumulated(self, *args: Any) -> STEP_OUTPUT:
        """Run the training step; `scaled` also weights its loss within the accumulated batches."""
        trainer = self.module.trainer
        # Not before: a callback may accumulate in some epochs only.
        self._logs.install(self.module)
        # Lightning clears the gradients at the same batches.
        is_first = trainer.fit_loop.batch_idx % trainer.accumulate_grad_batches == 0
        if is_first or self._window is None:
            self._window = Window(self.module)
        self._count = None
        self._logs.names.clear()
        output = self.train(*args)
        if self._count is None:
            self._count = self._sum(float(rows(args[0]))) / self.size
        count = float(self._count)
        self._window.log(count, self._logs.names)
        self._of_window = self._window.factor(0.0 if output is None else count)
        return output

    def _sum(self, count: float) -> float:
        if self.ranks is None or self.size == 1:
            return count
        total = torch.tensor(count, dtype=torch.float64, device=self.ranks.device)
        dist.all_reduce(total, group=self.ranks.samples_group)
        return float(total)

    def train(self, *args: Any) -> STEP_OUTPUT:
        """Run the training step; `scaled` weights its loss by this rank's share of the batch.

        Not here: hooks get the loss as it is.
        """
        self._of_share = self._of_window = 1.0
        loop = self.module.trainer.fit_loop
        combined = loaders_of(loop)
        assert combined is not None
        self.compare_first_batches(loaders_in_step(combined))
        shared = shared_in_step(combined, loop.batch_idx)
        if not shared:
            return self._unshared(combined, *args)
        shares = [loader.share(loop.batch_idx) for loader in shared]
        if not self._reported_uneven and (line := uneven_shares(shares, self.size)):
            self._reported_uneven = True
            if self.module.trainer.is_global_zero and not weighs(self.module):
                say(f"strategy={self.name}: {line}")
        self.share = share = combined_share(shares)
        self.weight = share.size * self.size / share.total
        self._count = self.samples = share.total
        try:
            output = self._run("training_step", *args, counts=share.size > 0)
        finally:
            self._of_share, self.weight, self.share = self.weight, 1.0, None
        for loader in shared:
            loader.trained(loop.batch_idx)
        self._count_samples(share.total)
        return output

    def scaled(self, loss: Tensor) -> Tensor:
        """Weight the loss that the current step has returned."""
        loss = loss if self._of_share == 1.0 else self.weigh(loss, self._of_share)
        return loss if self._of_window == 1.0 else loss * self._of_window

    def _unshared(self, combined: CombinedLoader, *args: Any) -> STEP_OUTPUT:
        if self.ranks is not None:
            return self._run("training_step", *args)
        index = self.module.trainer.fit_loop.batch_idx
        again = starts_again(combined)
        sizes = [size_of_batch(loader, index, again) for loader in combined.flattened]
        known = [size for size in sizes if size is not None]
        self.samples = sum(known) if known and len(known) == len(sizes) else None
        count = rows(args[0]) if self.samples is None else self.samples
        self._count = float(count)
        output = self._run("training_step", *args)
        self._count_samples(count)
        return output

    def _count_samples(self, samples: int) -> None:
        """Count the samples of a training batch once, even if several steps train on it."""
        number = self.module.trainer.fit_loop.epoch_loop.batch_progress.total.ready
        if number == self._counted:
            return
        self._counted = number
        self.samples_seen += samples
        if self.epochs is not None and self.epochs.samples is not None:
            exact = None if self.samples is None else self.epochs.samples + samples
            self.epochs.samples = exact

    # Evaluation

    def evaluate(self, name: str, *args: Any) -> STEP_OUTPUT:
        """Run a validation or test step; its values count by this rank's share."""
        share = self.evaluated[2]
        if share is None:
            return self._run(name, *args)
        self.weight = share.size * self.size / share.total
        try:
            return self._run(name, *args, counts=share.size > 0)
        finally:
            self.weight = 1.0

    def predict(self, *args: Any) -> Any:
        """Run a prediction step; None if this rank has no sample of the batch."""
        output = self._run("predict_step", *args)
        share = self.evaluated[2]
        return output if share is None or share.size else None

    def begin_evaluation(self) -> None:
        self._moved.clear()

    def note_moved_batch(self, dataloader_idx: int) -> None:
        """Note that an evaluation moves its next batch, and this rank's share of that batch.

        Lightning does not pass the number of the batch to strategies, so they are counted here.
        """
        combined = loaders_under_way(self.module.trainer)
        if combined is None:
            return
        number = self._moved[dataloader_idx]
        self._moved[dataloader_idx] += 1
        loaders = shared_in_step(combined, number, dataloader_idx)
        self.compare_first_batches(loaders_in_step(combined, dataloader_idx))
        share = combined_share([loader.share(number) for loader in loaders]) if loaders else None
        self.evaluated = dataloader_idx, number, share

    # Any step

    def _run(self, name: str, *args: Any, counts: bool = True) -> STEP_OUTPUT:
        """Prepare the batch, set the weights, and run a step of the task."""
        module, batch = self.module, args[0]
        if self.ranks is None and not weighs(module):
            self.prepared, self._logs.weight, self._logs.counts = None, None, True
            with self._logs.step(name) if self._logs.is_installed else nullcontext():
                return self._call(name, *args)  # type: ignore[no-any-return]
        with self._context():  # with the step's precision
            self.prepared = prepared(module, batch, self._rows_to_prepare())
        weight = None
        if name != "predict_step":
            weight = weight_of(module, batch if self.prepared is None else self.prepared.targets)
        if name == "training_step" and weight is not None:
            self.weight = self._weight_among_ranks(weight)
        self._logs.weight, self._logs.counts = weight, counts
        if weight is None and name == "training_step" and self._looks_for_ignored:
            self._report_ignored(batch)
        with ExitStack() as around:
            around.enter_context(prepared_once(module, batch, self.prepared))
            if weight is not None and not weight:  # as in a share that is all padding
                around.enter_context(replaced(module, "loss", no_loss))
            if not counts:
                around.enter_context(metrics_kept(module))
            if name != "predict_step":
                around.enter_context(self._logs.step(name))
            around.enter_context(replaced(self, "is_running", True))
            around.enter_context(self.own(Draws.STEP))
            looks = self._looks_for_draws and name == "training_step"
            before = get_state() if looks else None
            output: STEP_OUTPUT = self._call(name, *args)
            if before is not None:
                self._report_draws(before)
        self._batch_weight = self.weight
        return output

    def _report_draws(self, before: State) -> None:
        """Print, after the first training step, that each rank draws its own random numbers."""
        self._looks_for_draws = False
        assert self.ranks is not None
        draws = self.ranks.all_agree(not are_equal(before, get_state()), all=False)
        if draws and self.module.trainer.is_global_zero:
            say(
                f"strategy={self.name}: training_step of {type(self.module).__name__} draws random "
                "numbers, different ones on each rank, so the curve is not that of "
                "strategy=single; draw noise in prepare(batch), where it is the same (dropout "
                "cannot be)"
            )

    @property
    def counts(self) -> bool:
        """Whether this rank has samples of the batch of the last step."""
        return self._logs.counts

    @property
    def weight_in_means(self) -> float:
        """The factor for this rank's values in a mean over ranks, now."""
        return self._batch_weight if ends_batch(self.module) else self.weight

    def _report_ignored(self, batch: Any) -> None:
        """Print, in the first training step, that labels are ignored and nothing says so."""
        self._looks_for_ignored = False
        assert self.ranks is not None
        ignores = self.ranks.all_agree(ignores_labels(batch), all=False)
        if ignores and self.module.trainer.is_global_zero:
            kind = type(self.module).__name__
            say(
                f"strategy={self.name}: labels of the batch are -100, of which ranks have "
                f"different numbers, and their losses count by samples; if the loss of {kind} is a "
                "mean over labels, define weight(self, batch): return (labels != -100).sum()"
            )

    def _rows_to_prepare(self) -> Share | None:
        """Which rows of the global batch this rank prepares; None for all of them."""
        share = self.share if self.module.trainer.training else self.evaluated[2]
        if not prepares(self.module) or share is None or share.is_of_several:
            return None
        start, stop = share_of(share.total, self.rank, self.size)[:2]
        # A rank without a sample of its own uses another rank's.
        return Share(start - (start == stop), stop, share.total)

    def _weight_among_ranks(self, weight: Tensor) -> float:
        """The factor for this rank's loss that makes the mean over ranks count by weight."""
        self._count = weight
        if self.size == 1:
            return 1.0
        counts = self.share is None or self.share.size
        own = float(weight) if counts else 0.0
        self._count = total = self._sum(own)
        return own * self.size / total if total else 1.0

    def compare_first_batches(self, loaders: Sequence[Any]) -> None:
        """Reject what yields different samples on the ranks, by each loader's first batch."""
        for loader in loaders:
            if not isinstance(loader, SharedLoader | UnsharedLoader) or loader.is_compared:
                continue
            loader.is_compared = True
            if self.ranks is None:
                continue
            is_shared = isinstance(loader, SharedLoader)
            kind = type(loader.loader).__name__
            if is_shared:
                kind = f"the loader of {type(loader.dataset).__name__}"
            if len(set(each_rank_has(loader.fingerprint, None))) > 1:
                raise UserError(
                    f"strategy: {kind} yields different samples on some ranks; let it yield the "
                    "same ones on every rank, without a sampler or shards for each, because the "
                    "strategy divides the batches, or use strategy=single"
                )
            if not is_shared and self.size > 1 and self.module.trainer.is_global_zero:
                say(
                    f"strategy={self.name}: every rank computes every batch of {kind}, because it "
                    "is no DataLoader: the curve is right, but more ranks are no faster; return a "
                    "DataLoader(dataset, batch_size=...), of which each rank gets its share"
                )
