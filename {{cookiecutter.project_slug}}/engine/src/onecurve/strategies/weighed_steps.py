"""A task's steps on a rank: loss and logged values count by samples, draws are the rank's own."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from ..checkpoint.storage import LocalFiles
from .checkpoint_files import CheckpointFiles
from .loader import ShardedLoader
from .logging_together import LoggingTogether
from .mean_loss import looked_at
from .prepared import Prepared, Rows, prepared, prepared_once, prepares
from .sampler import Share, part
from .seeding import Draws, draw_from, global_seed
from .weight import counting_by, weight_of
from .without_share import counting_nothing


class WeighedSteps(CheckpointFiles):
    """Mix-in for strategies.

    Attributes:
        data_parallel_rank: This rank's coordinate among the ranks that see different samples.
        data_parallel_size: How many ranks see different samples.
        samples_seen: Training samples processed by all ranks in this process's life. Callbacks may
            read it.
        check_loss: Whether to look at the next loss: see `mean_loss`.
    """

    data_parallel_rank: int = 0
    data_parallel_size: int = 1
    samples_seen: int = 0
    check_loss: bool = True
    _weight: float = 1.0
    _share: Share | None = None
    _prepared: Prepared | None = None
    _has_taken_all: bool = False
    _together: LoggingTogether | None = None

    def _draw(self, what: Draws) -> None:
        step = self._connected_module.trainer.fit_loop.epoch_loop.batch_progress.total.ready
        rank = self.data_parallel_rank if what in (Draws.BATCH, Draws.STEP) else 0
        draw_from(global_seed(), step, rank, what)

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
        self._prepared = prepared(module, batch, rows)
        if name == "training_step":
            self._draw(Draws.STEP)
        weight = None if self._prepared is None else weight_of(module, self._prepared.targets)
        if name == "training_step" and weight is not None:
            self._weight = self._weight_among_ranks(weight)
        with prepared_once(module, batch, self._prepared), counting_by(module, weight):
            return self._logged_together(name, *args)

    def _rows_to_prepare(self) -> Rows | None:
        """Let `prepare` draw anew; and for which rows of which global batch."""
        trainer = self._connected_module.trainer
        if trainer.training:
            self._draw(Draws.PREPARE)
            return None if self._share is None else self._rows(self._share.total)
        loop: Any = trainer.predict_loop if trainer.predicting else trainer._evaluation_loop
        number, loader = loop.batch_progress.current.ready - 1, 0
        while number >= loop.max_batches[loader]:
            number, loader = number - int(loop.max_batches[loader]), loader + 1
        data = loop._combined_loader.flattened[loader]
        sharded = isinstance(data, ShardedLoader)
        joined = data.batch_sampler.joined(number) if sharded else [(number, 0)]
        draw_from(global_seed(), joined[0][0], loader, Draws.EVALUATE)
        if not sharded:
            return None
        draws = [(size, (global_seed(), each, loader, Draws.EVALUATE)) for each, size in joined]
        return self._rows(sum(size for size, _ in draws))._replace(parts=draws)

    def _rows(self, total: int) -> Rows:
        start, stop = part(total, self.data_parallel_rank, self.data_parallel_size)
        # A rank without a sample of its own takes part with another's.
        return Rows(start - (start == stop), stop, total)

    def _weight_among_ranks(self, weight: torch.Tensor) -> float:
        """What this rank's loss is multiplied by, so that the mean over ranks counts by weight."""
        if self.data_parallel_size == 1:
            return 1.0
        if self._share is not None and not self._share.size:
            weight = torch.zeros_like(weight)
        total = weight.to(self.root_device, copy=True)
        dist.all_reduce(total, group=self.samples_group)
        return float(weight) * self.data_parallel_size / float(total) if total else 1.0

    def _logged_together(self, name: str, *args: Any) -> STEP_OUTPUT:
        """Run a step; what it logs is averaged once all ranks have come to its end."""
        around: AbstractContextManager[None] = nullcontext()
        if self._together is not None and name != "predict_step":
            around = self._together.step(self._connected_module, name)
        with around:
            output: STEP_OUTPUT = self.task_step(name, *args)
        return output

    def validation_step(self, *args: Any) -> STEP_OUTPUT:
        return self._run_step("validation_step", *args)  # type: ignore[no-any-return]

    def test_step(self, *args: Any) -> STEP_OUTPUT:
        return self._run_step("test_step", *args)  # type: ignore[no-any-return]

    def predict_step(self, *args: Any) -> Any:
        return self._run_step("predict_step", *args)

    def training_step(self, *args: Any) -> STEP_OUTPUT:
        """Run the task's own step and weigh its loss by this rank's share of the global batch."""
        if isinstance(self.checkpoint_io, LocalFiles):
            # Hear of a file that could not be written in the background.
            self.checkpoint_io.poll()
        try:
            output = self._weighed_step(*args)
        finally:
            self._draw(Draws.ALL_RANKS)
        return output

    def _weighed_step(self, *args: Any) -> STEP_OUTPUT:
        trainer = self._connected_module.trainer
        loader = trainer.train_dataloader
        if not isinstance(loader, ShardedLoader):
            return self._run_step("training_step", *args)  # type: ignore[no-any-return]
        sampler = loader.batch_sampler
        self._share = share = sampler.share(trainer.fit_loop.batch_idx)
        self._weight = share.size * sampler.num_replicas / share.total
        module = self._connected_module
        around: AbstractContextManager[None] = nullcontext()
        if not share.size:
            around = counting_nothing(module)
        elif self.is_global_zero and sampler.num_replicas > 1 and self.check_loss:
            # Once.
            self.check_loss = False
            name = type(self).__name__.lower()
            around = looked_at(module, name, lambda: self._has_taken_all)
        try:
            with around:
                output = self._run_step("training_step", *args)
        finally:
            weight, self._weight, self._share = self._weight, 1.0, None
        self.samples_seen += sampler.consume(trainer.fit_loop.batch_idx)
        return output if weight == 1.0 else _scaled(output, weight)

    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Weigh a loss whose backward pass a task starts by itself, in its step."""
        if self._weight != 1.0:
            closure_loss = closure_loss * self._weight
        return super().backward(closure_loss, optimizer, *args, **kwargs)

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Let an optimizer that decides by the loss decide alike on all ranks."""
        if not isinstance(optimizer, LBFGS):
            return super().optimizer_step(optimizer, closure, model, **kwargs)
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


def _scaled(output: STEP_OUTPUT, weight: float) -> STEP_OUTPUT:
    if isinstance(output, Tensor):
        return output * weight
    if isinstance(output, dict):
        return {**output, "loss": output["loss"] * weight}
    return output
