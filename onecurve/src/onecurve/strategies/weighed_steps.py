"""A task's steps on a rank: loss and logged values count by samples, draws are the rank's own."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from ..batch.random import Draws, RankStream
from ..batch.share import Share, SharedLoader, share_of, shared_in_step, together, unlike
from ..batch.stream import StreamLoader
from ..checkpoint.storage import LocalFiles
from ..errors import UserError, say
from ..optim.fused import tidied
from .accumulation import Window, rows
from .checkpoint_files import CheckpointFiles
from .logging_together import LoggingTogether
from .prepared import Prepared, Rows, prepared, prepared_once, prepares
from .weight import counting_by, weighs, weight_of
from .without_share import counting_nothing


class WeighedSteps(CheckpointFiles):
    """Mix-in for strategies.

    Attributes:
        data_parallel_rank: This rank's coordinate among the ranks that see different samples.
        data_parallel_size: How many ranks see different samples.
        samples_seen: Training samples processed by all ranks in this process's life. Callbacks may
            read it.
        stream: What this rank draws.
        name: What ``strategy=...`` calls it.
    """

    name: str = ""

    data_parallel_rank: int = 0
    data_parallel_size: int = 1
    samples_seen: int = 0
    stream: RankStream
    _weight: float = 1.0
    _share: Share | None = None
    # What the batch under way counts over all ranks, and the window of batches that it is in.
    _count: float | Tensor | None = None
    _window: Window | None = None
    # In an evaluation: the loader, the number of its batch, and what this rank has of it; None if
    # it is not shared out.
    _evaluated: tuple[int, int, Share | None] = (0, 0, None)
    # The last batch whose samples were counted.
    _counted: int = 0
    _prepared: Prepared | None = None
    _say_unlike: bool = True
    _together: LoggingTogether | None = None

    def _own(self, what: Draws) -> AbstractContextManager[None]:
        """Draw meanwhile what belongs to this rank and to the batch under way."""
        trainer = self._connected_module.trainer
        batches = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        return self.stream.own(what, batches, *(() if trainer.training else self._evaluated[:2]))

    def task_step(self, name: str, *args: Any) -> Any:
        """Run a step of the task. A strategy that redirects `forward` for its length does it here.

        Args:
            name: "training_step", "validation_step", "test_step" or "predict_step".
            args: The batch and what else Lightning passes on.
        """
        return getattr(super(), name)(*args)

    def _run_step(self, name: str, *args: Any) -> Any:
        """Run a step on what the task makes of its batch, counted as the task says."""
        module, batch = self._connected_module, args[0]
        rows = self._rows_to_prepare() if prepares(module) else None
        with self.precision_plugin.forward_context():  # in the types of the step
            self._prepared = prepared(module, batch, rows)
        weight = None
        if self._prepared is not None and name != "predict_step":
            weight = weight_of(module, self._prepared.targets)
        if name == "training_step" and weight is not None:
            self._weight = self._weight_among_ranks(weight)
        with prepared_once(module, batch, self._prepared), counting_by(module, weight):
            return self._logged_together(name, *args)

    def _rows_to_prepare(self) -> Rows | None:
        """Which rows of the global batch this rank prepares; None for all of them."""
        is_trained = self._connected_module.trainer.training
        share = self._share if is_trained else self._evaluated[2]
        return None if share is None or share.is_of_several else self._rows(share.total)

    def _rows(self, total: int) -> Rows:
        start, stop = share_of(total, self.data_parallel_rank, self.data_parallel_size)[:2]
        # A rank without a sample of its own takes part with another's.
        return Rows(start - (start == stop), stop, total)

    def _weight_among_ranks(self, weight: torch.Tensor) -> float:
        """What this rank's loss is multiplied by, so that the mean over ranks counts by weight."""
        self._count = weight
        if self.data_parallel_size == 1:
            return 1.0
        if self._share is not None and not self._share.size:
            weight = torch.zeros_like(weight)
        total = weight.to(self.root_device, copy=True)
        dist.all_reduce(total, group=self.samples_group)
        self._count = total
        return float(weight) * self.data_parallel_size / float(total) if total else 1.0

    def _logged_together(self, name: str, *args: Any) -> STEP_OUTPUT:
        """Run a step; what it logs is averaged once all ranks have come to its end."""
        around: AbstractContextManager[None] = nullcontext()
        if self._together is not None and name != "predict_step":
            around = self._together.step(self._connected_module, name)
        with around, self._own(Draws.STEP):
            output: STEP_OUTPUT = self.task_step(name, *args)
        return output

    def validation_step(self, *args: Any) -> STEP_OUTPUT:
        return self._evaluation_step("validation_step", *args)

    def test_step(self, *args: Any) -> STEP_OUTPUT:
        return self._evaluation_step("test_step", *args)

    def predict_step(self, *args: Any) -> Any:
        output = self._run_step("predict_step", *args)
        share = self._evaluated[2]
        return output if share is None or share.size else None

    def _evaluation_step(self, name: str, *args: Any) -> STEP_OUTPUT:
        share = self._evaluated[2]
        if share is None:
            return self._run_step(name, *args)  # type: ignore[no-any-return]
        with nullcontext() if share.size else counting_nothing(self._connected_module):
            self._weight = share.size * self.data_parallel_size / share.total
            try:
                output: STEP_OUTPUT = self._run_step(name, *args)
            finally:
                self._weight = 1.0
        return output

    def training_step(self, *args: Any) -> STEP_OUTPUT:
        """Run the task's own step and weigh its loss by this rank's share of the global batch."""
        if isinstance(self.checkpoint_io, LocalFiles):
            # Hear of a file that could not be written in the background.
            self.checkpoint_io.poll()
        accumulates = self._connected_module.trainer.accumulate_grad_batches > 1
        return self._accumulated_step(*args) if accumulates else self._weighed_step(*args)

    def _accumulated_step(self, *args: Any) -> STEP_OUTPUT:
        """Run the step, weighed among the batches that are accumulated with it."""
        module = self._connected_module
        trainer = module.trainer
        # Where Lightning clears the gradients, too.
        is_first = trainer.fit_loop.batch_idx % trainer.accumulate_grad_batches == 0
        if is_first or self._window is None:
            self._window = Window(module)
        self._count = None
        with self._window.noting():
            output = self._weighed_step(*args)
        if self._count is None:
            count = float(self.reduce(torch.tensor(float(rows(args[0])), device=self.root_device)))
        else:
            count = float(self._count)
        self._window.log(count)
        factor = self._window.factor(0.0 if output is None else count)
        return output if factor == 1.0 else _scaled(output, lambda loss: loss * factor)

    def _weighed_step(self, *args: Any) -> STEP_OUTPUT:
        loop = self._connected_module.trainer.fit_loop
        assert loop._combined_loader is not None
        loaders = shared_in_step(loop._combined_loader, loop.batch_idx)
        if not loaders:
            return self._run_step("training_step", *args)  # type: ignore[no-any-return]
        self.compare_streams(loaders)
        shares = [loader.share(loop.batch_idx) for loader in loaders]
        if self._say_unlike and (line := unlike(shares, self.data_parallel_size)):
            self._say_unlike = False
            if self.is_global_zero and not weighs(self._connected_module):
                say(f"strategy={self.name}: {line}")
        self._share = share = together(shares)
        self._weight = share.size * self.data_parallel_size / share.total
        self._count = share.total
        module = self._connected_module
        try:
            with nullcontext() if share.size else counting_nothing(module):
                output = self._run_step("training_step", *args)
        finally:
            weight, self._weight, self._share = self._weight, 1.0, None
        for loader in loaders:
            loader.trained(loop.batch_idx)
        self._count_samples(sum(loader.share(loop.batch_idx).total for loader in loaders))
        return output if weight == 1.0 else _scaled(output, lambda loss: self.weighed(loss, weight))

    def compare_streams(self, loaders: Sequence[SharedLoader]) -> None:
        """Compare the first batch that each stream yields, of all ranks together.

        Raises:
            UserError: If it is another on some ranks.
        """
        for loader in loaders:
            if not isinstance(loader, StreamLoader) or loader.is_compared:
                continue
            loader.is_compared = True
            if not (dist.is_available() and dist.is_initialized()):
                continue
            of_ranks: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(of_ranks, loader.fingerprint)
            if len(set(of_ranks)) > 1:
                raise UserError(
                    f"strategy: {type(loader.dataset).__name__} yields other samples on some "
                    "ranks; let it yield the same on all of them, whatever their rank: each batch "
                    "is shared out by the strategy"
                )

    def _count_samples(self, samples: int, is_exact: bool = True) -> None:
        """Count the samples of a training batch, once, however often it is trained on."""
        number = self._connected_module.trainer.fit_loop.epoch_loop.batch_progress.total.ready
        if number == self._counted:
            return
        self._counted = number
        self.samples_seen += samples
        epochs = self.epochs
        if epochs is not None and epochs.samples is not None:
            epochs.samples = epochs.samples + samples if is_exact else None

    def weighed(self, loss: Tensor, weight: float) -> Tensor:
        """A loss, and its gradients, by this rank's share."""
        return loss * weight

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Let an optimizer that decides by the loss decide alike on all ranks."""
        if not isinstance(optimizer, LBFGS):

            def backward() -> Any:
                result = closure()
                tidied(optimizer)
                return result

            return super().optimizer_step(optimizer, backward, model, **kwargs)
        return super().optimizer_step(optimizer, lambda: self.reduce(closure()), model, **kwargs)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """All-reduce over the ranks that see different samples.

        A mean during a training step counts by sample, and in floating point: Lightning's own
        divides integers without remainder on gloo (its batch-size counter is one).
        """
        group = group or self.samples_group
        if reduce_op not in ("mean", "avg") or not isinstance(tensor, Tensor):
            return super().reduce(tensor, group, reduce_op)  # type: ignore[safe-super]
        if not (dist.is_available() and dist.is_initialized()):
            return tensor
        # Counters, too: a third of one is no number of float32.
        double = tensor.dtype == torch.float64 or self.precision_plugin.precision == "64-true"
        total = tensor.double() if double else tensor.float()
        total = total * self._weight
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
        return total / dist.get_world_size(group)


def _scaled(output: STEP_OUTPUT, scale: Callable[[Tensor], Tensor]) -> STEP_OUTPUT:
    if isinstance(output, Tensor):
        return scale(output)
    if isinstance(output, dict):
        return {**output, "loss": scale(output["loss"])}
    return output
