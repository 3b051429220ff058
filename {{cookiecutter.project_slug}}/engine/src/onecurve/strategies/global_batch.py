"""What every strategy here has in common: the global batch, shared out and weighed by sample.

Exact: the gradient and every logged mean are those of the whole global batch, also where the ranks'
shares differ by a sample. A rank's loss is scaled by ``weight = share * ranks / total``, so that
the plain mean over ranks, as DistributedDataParallel and `reduce` take it, is that over samples.
Not exact: an uneven last batch with several training loaders at once, where no single share passes
through here; use ``drop_last=True`` there. What a task sums up in Python by itself, beside metrics
and `self.log`: a rank without a sample in a training step is given one, which counts nowhere else.
"""

from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import RunningStage
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchmetrics import Metric

from ..checkpoint.other_optimizer import fit_to_length
from .clip import clip_by_global_norm
from .loader import ShardedLoader, shard
from .logging_together import LoggingTogether
from .seeding import Draws, global_seed
from .weighed_steps import WeighedSteps


class GlobalBatch(WeighedSteps):
    """Mix-in for Lightning's strategies; it stands before the strategy class.

    Attributes:
        report_dir: Where to leave pictures of what the strategy does; None for nowhere.
    """

    report_dir: Path | None = None

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
        if self._together is None and self.data_parallel_size > 1:
            self._together = LoggingTogether(self.root_device, self.samples_group)
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

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all ranks, or any of them, say yes: all of the world, whoever sees what."""
        if not (dist.is_available() and dist.is_initialized()):
            return decision
        votes = torch.tensor(int(decision), device=self.root_device)
        dist.all_reduce(votes)
        return bool(votes == dist.get_world_size()) if all else bool(votes)
