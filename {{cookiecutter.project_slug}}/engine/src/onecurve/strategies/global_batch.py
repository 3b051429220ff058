"""What every strategy here has in common: the global batch, shared out and weighed by sample.

Exact: the gradient and every logged mean are those of the whole global batch, also where the ranks'
shares differ by a sample. A rank's loss is scaled by ``weight = share * ranks / total``, so that
the plain mean over ranks, as DistributedDataParallel and `reduce` take it, is that over samples.
Not exact: an uneven last batch under manual optimization or with several training loaders at once,
where no single loss or share passes through here; use ``drop_last=True`` there.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchmetrics import Metric

from ..checkpoint.contents import epoch_position
from ..checkpoint.other_optimizer import fit_to_length
from ..checkpoint.storage import LocalFiles
from ..checkpoint.stored import model_state_here, optimizer_states_here
from .clip import clip_by_global_norm
from .for_callbacks import ForCallbacks
from .loader import ShardedLoader, shard
from .seeding import draw_from, global_seed


class GlobalBatch(ForCallbacks):
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
    _resume_position: dict[str, int] | None = None
    _weight: float = 1.0

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
        loaded = module.trainer._checkpoint_connector._loaded_checkpoint.get("lr_schedulers", [])
        fit_to_length(loaded, [config.scheduler for config in self.lr_scheduler_configs])
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
        if not isinstance(dataloader, DataLoader):
            return dataloader
        trainer = self._connected_module.trainer
        loader = shard(
            dataloader,
            rank=self.data_parallel_rank,
            num_replicas=self.data_parallel_size,
            seed=global_seed(),
            training=trainer.training,
        )
        if isinstance(loader, ShardedLoader):
            # Loader workers fetch ahead: before Lightning announces the epoch, and before it
            # restores the position that it saved.
            loader.batch_sampler.set_epoch(trainer.current_epoch)
            if trainer.training and self._resume_position is not None:
                loader.load_state_dict(self._resume_position)
                self._resume_position = None
        return loader

    # Checkpoints

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """What writes and reads checkpoints: whole files, unless a Trainer was given another."""
        if self._checkpoint_io is None:
            self._checkpoint_io = LocalFiles()
        return super().checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    @property
    def keeps_shards(self) -> bool:
        """Whether every rank writes what it holds, so that nothing is gathered."""
        return isinstance(self.checkpoint_io, LocalFiles) and self.checkpoint_io.keeps_shards

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint; Lightning's own does so on the first rank."""
        if self.keeps_shards:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, and remember where in its epoch a fit goes on."""
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, weights_only)
        trainer = self._connected_module.trainer
        # Not where a callback goes back to where this fit began: its loader is there already.
        if trainer.state.fn == TrainerFn.FITTING and trainer.train_dataloader is None:
            self._resume_position = epoch_position(checkpoint)
        return checkpoint

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the network's state, of which a sharded checkpoint has to be asked."""
        state = model_state_here(checkpoint["state_dict"], self._connected_module.state_dict())
        super().load_model_state_dict({"state_dict": state}, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        states = optimizer_states_here(checkpoint["optimizer_states"], self.optimizers)
        super().load_optimizer_state_dict({"optimizer_states": states})

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Move a batch. For training, its augmentation and its step draw anew: see `seeding`."""
        trainer = self._connected_module.trainer
        if trainer.training:
            step = trainer.fit_loop.epoch_loop.batch_progress.total.ready
            draw_from(global_seed(), step, self.data_parallel_rank)
        return super().batch_to_device(batch, device, dataloader_idx)

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
        trainer = self._connected_module.trainer
        loader = trainer.train_dataloader
        output: STEP_OUTPUT
        if not isinstance(loader, ShardedLoader):
            output = self.task_step("training_step", *args)
            return output
        sampler = loader.batch_sampler
        share = sampler.share(trainer.fit_loop.batch_idx)
        self._weight = share.size * sampler.num_replicas / share.total
        try:
            output = self.task_step("training_step", *args)
        finally:
            weight, self._weight = self._weight, 1.0
        sampler.consumed += share.total
        self.samples_seen += share.total
        return output if weight == 1.0 else _scaled(output, weight)

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
