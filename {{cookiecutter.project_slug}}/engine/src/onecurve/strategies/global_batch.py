"""What every strategy here has in common: the global batch, shared out and weighed by sample.

Exact: the gradient and every logged mean are those of the whole global batch, also where the ranks'
shares differ by a sample. A rank's loss is scaled by ``weight = share * ranks / total``, so that
the plain mean over ranks, as DistributedDataParallel and `reduce` take it, is that over samples.
Not exact: an uneven last batch with several training loaders at once, where no single share passes
through here; use ``drop_last=True`` there. What a task sums up in Python by itself, beside metrics
and `self.log`: a rank without a sample in a training step is given one, which counts nowhere else.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.utils.data import DataLoader
from torchmetrics import Metric

from ..checkpoint.storage import LocalFiles
from .checkpoint_files import CheckpointFiles
from .clip import clip_by_global_norm
from .loader import ShardedLoader, shard
from .mean_loss import looked_at
from .seeding import Draws, draw_from, global_seed
from .without_share import counting_nothing


class GlobalBatch(CheckpointFiles):
    """Mix-in for Lightning's strategies; it stands before the strategy class.

    Attributes:
        data_parallel_rank: This rank's coordinate among the ranks that see different samples.
        data_parallel_size: How many ranks see different samples.
        samples_seen: Training samples processed by all ranks in this process's life. Callbacks may
            read it.
        report_dir: Where to leave pictures of what the strategy does; None for nowhere.
    """

    data_parallel_rank: int = 0
    data_parallel_size: int = 1
    samples_seen: int = 0
    report_dir: Path | None = None
    _weight: float = 1.0
    _has_looked_at_loss: bool = False

    def setup_environment(self) -> None:
        """Join the other ranks, if there are any. Lightning calls this first."""
        super().setup_environment()
        # Lightning's would share the samples out before `process_dataloader` does, and repeats
        # some of them; so nobody has to say Trainer(use_distributed_sampler=False).
        connector = self._connected_module.trainer._accelerator_connector
        connector.use_distributed_sampler = False

    def connect(self, model: LightningModule) -> None:
        """Take the task, in the precision of the run.

        Lightning's own converts it later: after a checkpoint's float64 was copied into float32, and
        after callbacks were set up.
        """
        super().connect(model)
        self.precision_plugin.convert_module(model)

    def setup(self, trainer: Trainer) -> None:
        """Set the strategy up. Lightning calls this before a fit, a test, ..."""
        super().setup(trainer)
        self.prepare()

    def prepare(self) -> None:
        """Make logged values, metrics and clipping those of all ranks, whatever the task asks.

        And let random numbers start anew: what a strategy drew in its setup makes no difference.
        """
        reset_seed()
        module = self._connected_module
        if not isinstance(module.log, partial):
            module.log = partial(module.log, sync_dist=True)  # type: ignore[method-assign]
            module.log_dict = partial(module.log_dict, sync_dist=True)  # type: ignore[method-assign]
        for metric in module.modules():
            if isinstance(metric, Metric) and metric.process_group is None:
                metric.process_group = self.samples_group
        self.precision_plugin.clip_grad_by_norm = self._clip_by_norm  # type: ignore[method-assign]

    def _clip_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        parameters = self.precision_plugin.main_params(optimizer)
        clip_by_global_norm(parameters, clip_val, self.parts_group)

    def process_dataloader(self, dataloader: object) -> object:
        """Give this rank its share. Lightning calls this for every loader."""
        trainer = self._connected_module.trainer
        loader = dataloader
        if isinstance(dataloader, DataLoader):
            stage = cast(RunningStage, trainer.state.stage).dataloader_prefix
            loader = shard(
                dataloader,
                rank=self.data_parallel_rank,
                num_replicas=self.data_parallel_size,
                seed=global_seed(),
                training=trainer.training,
                limit=getattr(trainer, f"limit_{stage}_batches"),
            )
        if isinstance(loader, ShardedLoader):
            # Loader workers fetch ahead: before Lightning announces the epoch, and before it
            # restores the position that it saved.
            loader.batch_sampler.set_epoch(trainer.current_epoch)
        if trainer.training:
            self.go_on_in_epoch(loader)
        return loader

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Move a batch. For training, its augmentation draws anew: see `seeding`."""
        if not self._connected_module.trainer.training:
            return super().batch_to_device(batch, device, dataloader_idx)
        self._draw(Draws.BATCH)
        moved = super().batch_to_device(batch, device, dataloader_idx)
        self._draw(Draws.ALL_RANKS)
        return moved

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

    def validation_step(self, *args: Any) -> STEP_OUTPUT:
        output: STEP_OUTPUT = self.task_step("validation_step", *args)
        return output

    def test_step(self, *args: Any) -> STEP_OUTPUT:
        output: STEP_OUTPUT = self.task_step("test_step", *args)
        return output

    def predict_step(self, *args: Any) -> Any:
        return self.task_step("predict_step", *args)

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
        trainer = self._connected_module.trainer
        loader = trainer.train_dataloader
        output: STEP_OUTPUT
        if not isinstance(loader, ShardedLoader):
            output = self.task_step("training_step", *args)
            return output
        sampler = loader.batch_sampler
        share = sampler.share(trainer.fit_loop.batch_idx)
        self._weight = share.size * sampler.num_replicas / share.total
        module = self._connected_module
        around: AbstractContextManager[None] = nullcontext()
        if not share.size:
            around = counting_nothing(module)
        elif not self._has_looked_at_loss and sampler.num_replicas > 1 and self.is_global_zero:
            around = looked_at(module, type(self).__name__.lower())
        self._has_looked_at_loss = True
        try:
            with around:
                output = self.task_step("training_step", *args)
        finally:
            weight, self._weight = self._weight, 1.0
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

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all ranks, or any of them, say yes: all of the world, whoever sees what."""
        if not (dist.is_available() and dist.is_initialized()):
            return decision
        votes = torch.tensor(int(decision), device=self.root_device)
        dist.all_reduce(votes)
        return bool(votes == dist.get_world_size()) if all else bool(votes)


def _scaled(output: STEP_OUTPUT, weight: float) -> STEP_OUTPUT:
    if isinstance(output, Tensor):
        return output * weight
    if isinstance(output, dict):
        return {**output, "loss": output["loss"] * weight}
    return output
