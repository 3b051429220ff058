"""What every strategy here has in common: the global batch, shared out and weighed by sample.

Exact: the gradient and every logged mean are those of the whole global batch, also where the ranks'
shares differ by a sample. A rank's loss is scaled by ``weight = share * ranks / total``, so that
the plain mean over ranks, as DistributedDataParallel and `reduce` take it, is that over samples.
A step of several training loaders counts by the samples of all of them. Not exact there: a sum of
their means in a batch that does not share out alike, which is announced. Nor what a task sums up in
Python by itself, beside metrics and `self.log`: a rank without a sample in a step is given one,
which counts nowhere else.
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchmetrics import Metric

from ..checkpoint.other_length import fit_to_length
from ..errors import UserError, say
from ..optim.capture import never_captured
from ..optim.fused import keep_kernels, leave_unscaling
from .clip import clip_by_global_norm
from .layers_made import Compiled, Recomputed, make_layers
from .loader import shard
from .logging_together import LoggingTogether
from .seeding import Draws, global_seed
from .shared_loader import SharedLoader, let_repeat, shared_in_step
from .stream import StreamLoader
from .weighed_steps import WeighedSteps


class GlobalBatch(WeighedSteps):
    """Mix-in for Lightning's strategies; it stands before the strategy class.

    Attributes:
        report_dir: Where to leave pictures of what the strategy does; None for nowhere.
        activation_checkpointing: What a backward pass computes again.
        compiled: What torch.compile makes code of: see `layers_made`. To be set before a fit.
        compile_backend: torch.compile's; "aot_eager" traces and makes no code.
    """

    report_dir: Path | None = None
    activation_checkpointing: Recomputed = "none"
    compiled: Compiled = "none"
    compile_backend: str = "inductor"
    _moved: Counter[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Batches of each loader that an evaluation moved to the device.
        self._moved = Counter()

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
        self.make_layers()
        super().setup(trainer)
        self.prepare()

    def make_layers(self, layers: Iterable[nn.Module] | None = None) -> None:
        """Let layers compute again and compile them, as asked: see `layers_made`.

        Before they are sharded, wrapped or spread over stages.

        Args:
            layers: Those of this rank; by default the whole task's.
        """
        make_layers(
            self._connected_module,
            self.activation_checkpointing,
            self.compiled,
            backend=self.compile_backend,
            layers=layers,
            loss=self.can_compile_loss,
        )

    @property
    def can_compile_loss(self) -> bool:
        """Whether the loss is given ordinary tensors."""
        return True

    def prepare(self) -> None:
        """Make logged values, metrics and clipping those of all ranks, whatever the task asks.

        And let random numbers start anew: what a strategy drew in its setup makes no difference.
        """
        reset_seed()
        module = self._connected_module
        trainer = module.trainer
        # Lightning loads the states next; not for a test, which comes by a checkpoint, too.
        if trainer.state.fn == TrainerFn.FITTING:
            loaded = trainer._checkpoint_connector._loaded_checkpoint
            schedulers = [config.scheduler for config in self.lr_scheduler_configs]
            for line in fit_to_length(loaded, schedulers, self.optimizers):
                if self.is_global_zero:
                    say(line)
        scaler = getattr(self.precision_plugin, "scaler", None)
        for optimizer in self.optimizers:
            keep_kernels(optimizer)
            leave_unscaling(optimizer, is_scaled=scaler is not None)
            if self.root_device.type == "cpu":
                never_captured(optimizer)
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

    def on_train_start(self) -> None:
        """Lightning has made the training loaders."""
        super().on_train_start()
        combined = self._connected_module.trainer.fit_loop._combined_loader
        if combined is not None:
            let_repeat(combined)

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
        if isinstance(loader, SharedLoader):
            # Loader workers fetch ahead: before Lightning announces the epoch, and before it
            # restores the position that it saved.
            loader.set_epoch(trainer.current_epoch)
        if trainer.training:
            self.go_on_in_epoch(loader)
        if isinstance(loader, StreamLoader):
            self._compare_streams(loader)
        return loader

    def _compare_streams(self, loader: StreamLoader) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            return
        loader.first()
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, loader.fingerprint)
        if len(set(of_ranks)) > 1:
            raise UserError(
                f"strategy: {type(loader.dataset).__name__} yields other samples on some ranks; "
                "let it yield the same on all of them, whatever their rank: each batch is shared "
                "out by the strategy"
            )

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Move a batch. For training, its augmentation draws anew: see `seeding`."""
        trainer = self._connected_module.trainer
        if not trainer.training:
            self._look_at_share(trainer, dataloader_idx)
            return super().batch_to_device(batch, device, dataloader_idx)
        self._draw(Draws.BATCH)
        moved = super().batch_to_device(batch, device, dataloader_idx)
        self._draw(Draws.ALL_RANKS)
        return moved

    def on_validation_start(self) -> None:
        """An evaluation starts; nothing was moved to the device."""
        super().on_validation_start()
        self._moved.clear()

    def on_test_start(self) -> None:
        super().on_test_start()
        self._moved.clear()

    def on_predict_start(self) -> None:
        super().on_predict_start()
        self._moved.clear()

    def _look_at_share(self, trainer: Trainer, dataloader_idx: int) -> None:
        """Whether the batch has a sample of this rank: the last one of a stream may not.

        A task that does not ask for the number of a batch is not told it, and no strategy is.
        """
        combined: Any = getattr(trainer._active_loop, "_combined_loader", None)
        if combined is None:
            return
        number = self._moved[dataloader_idx]
        self._moved[dataloader_idx] += 1
        loaders = shared_in_step(combined, number, dataloader_idx)
        has_share = not loaders or any(loader.share(number).size for loader in loaders)
        self._evaluated = dataloader_idx, number, has_share

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all ranks, or any of them, say yes: all of the world, whoever sees what."""
        if not (dist.is_available() and dist.is_initialized()):
            return decision
        votes = torch.tensor(int(decision), device=self.root_device)
        dist.all_reduce(votes)
        return bool(votes == dist.get_world_size()) if all else bool(votes)
