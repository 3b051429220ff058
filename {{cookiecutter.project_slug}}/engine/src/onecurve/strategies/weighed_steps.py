"""A task's steps on a rank: loss and logged values count by samples, draws are the rank's own."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from ..checkpoint.storage import LocalFiles
from ..errors import say
from .checkpoint_files import CheckpointFiles
from .logging_together import LoggingTogether
from .mean_loss import looked_at
from .seeding import Draws, draw_from, global_seed
from .shared_loader import Share, shared_in_step
from .without_share import counting_nothing


class WeighedSteps(CheckpointFiles):
    """Mix-in for strategies.

    Attributes:
        data_parallel_rank: This rank's coordinate among the ranks that see different samples.
        data_parallel_size: How many ranks see different samples.
        samples_seen: Training samples processed by all ranks in this process's life. Callbacks may
            read it.
    """

    data_parallel_rank: int = 0
    data_parallel_size: int = 1
    samples_seen: int = 0
    _weight: float = 1.0
    # Whether the batch that is evaluated has a sample of this rank.
    _evaluates_own: bool = True
    _has_looked_at_loss: bool = False
    _has_looked_at_shares: bool = False
    _together: LoggingTogether | None = None

    def _draw(self, what: Draws) -> None:
        step = self._connected_module.trainer.fit_loop.epoch_loop.batch_progress.total.ready
        rank = 0 if what == Draws.ALL_RANKS else self.data_parallel_rank
        draw_from(global_seed(), step, rank, what)

    def task_step(self, name: str, *args: Any) -> Any:
        """Run a step of the task. A strategy that redirects `forward` for its length does it here.

        Args:
            name: "training_step", "validation_step", "test_step" or "predict_step".
            args: The batch and what else Lightning passes on.
        """
        return getattr(super(), name)(*args)

    def _logged_together(self, name: str, *args: Any) -> STEP_OUTPUT:
        """Run a step; what it logs is averaged once all ranks have come to its end."""
        around: AbstractContextManager[None] = nullcontext()
        if self._together is not None:
            around = self._together.step(self._connected_module, name)
        with around:
            output: STEP_OUTPUT = self.task_step(name, *args)
        return output

    def validation_step(self, *args: Any) -> STEP_OUTPUT:
        with self._counting():
            return self._logged_together("validation_step", *args)

    def test_step(self, *args: Any) -> STEP_OUTPUT:
        with self._counting():
            return self._logged_together("test_step", *args)

    def predict_step(self, *args: Any) -> Any:
        output = self.task_step("predict_step", *args)
        return output if self._evaluates_own else None

    def _counting(self) -> AbstractContextManager[None]:
        has_share = self._evaluates_own
        return nullcontext() if has_share else counting_nothing(self._connected_module)

    def training_step(self, *args: Any) -> STEP_OUTPUT:
        """Run the task's own step and weigh its loss by this rank's share of the global batch."""
        if isinstance(self.checkpoint_io, LocalFiles):
            # Hear of a file that could not be written in the background.
            self.checkpoint_io.poll()
        self._draw(Draws.STEP)
        try:
            output = self._weighed_step(*args)
        finally:
            self._draw(Draws.ALL_RANKS)
        return output

    def _weighed_step(self, *args: Any) -> STEP_OUTPUT:
        loop = self._connected_module.trainer.fit_loop
        assert loop._combined_loader is not None
        loaders = shared_in_step(loop._combined_loader, loop.batch_idx)
        if not loaders:
            return self._logged_together("training_step", *args)
        shares = [loader.share(loop.batch_idx) for loader in loaders]
        size, total = sum(share.size for share in shares), sum(share.total for share in shares)
        self._weight = size * self.data_parallel_size / total
        self._look_at_shares(shares)
        module = self._connected_module
        around: AbstractContextManager[None] = nullcontext()
        if not size:
            around = counting_nothing(module)
        elif not self._has_looked_at_loss and self.data_parallel_size > 1 and self.is_global_zero:
            around = looked_at(module, type(self).__name__.lower())
        self._has_looked_at_loss = True
        try:
            with around:
                output = self._logged_together("training_step", *args)
        finally:
            weight, self._weight = self._weight, 1.0
        self.samples_seen += sum(loader.consume(loop.batch_idx) for loader in loaders)
        return output if weight == 1.0 else _scaled(output, weight)

    def _look_at_shares(self, shares: Sequence[Share]) -> None:
        """Say once that the batches of several loaders do not share out alike."""
        uneven = [share for share in shares if share.total % self.data_parallel_size]
        if self._has_looked_at_shares or not uneven or len(shares) == 1:
            return
        self._has_looked_at_shares = True
        if self.is_global_zero:
            sizes = " and ".join(str(share.total) for share in shares)
            say(
                f"strategy={type(self).__name__.lower()}: the loaders' batches of {sizes} samples "
                f"do not share out alike on {self.data_parallel_size} ranks: a mean over all of "
                "them is exact, a sum of their means is not; use drop_last=True and batch sizes "
                f"that {self.data_parallel_size} divides"
            )

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
