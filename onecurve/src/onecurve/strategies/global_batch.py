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
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import Precision
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torchmetrics import Metric

from ..batch.loader import (
    RankLoader,
    has_indices,
    is_stream,
    refuse_shared,
    seed_workers,
    without_state,
)
from ..batch.random import Draws, OneStream, RankStream, get_state, kept_state, set_state
from ..batch.resume import TrainingEpochs
from ..batch.share import shared_in_step, together
from ..batch.stream import StreamLoader
from ..checkpoint.other_length import fit_to_length
from ..errors import say
from ..optim.capture import never_captured
from ..optim.fused import keep_kernels, leave_unscaling
from .clip import clip_by_global_norm
from .layers_made import Compiled, Recomputed, make_layers
from .logging_together import LoggingTogether, synced
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
    _loaders: int = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Batches of each loader that an evaluation moved to the device.
        self._moved = Counter()

    def setup_environment(self) -> None:
        """Join the other ranks, if there are any. Lightning calls this first."""
        with kept_state():  # Lightning seeds the generators again where ranks meet
            super().setup_environment()
        self.lay_out()
        trainer = self._connected_module.trainer
        # Lightning's would share the samples out before `process_dataloader` does, and repeats
        # some of them; so nobody has to say Trainer(use_distributed_sampler=False).
        trainer._accelerator_connector.use_distributed_sampler = False
        if not hasattr(self, "stream"):
            rank, shares = self.data_parallel_rank, self.data_parallel_size > 1
            self.stream = RankStream(rank, shares) if self.draws_apart else OneStream()
        self._synchronize()
        self.stream.reseed()
        if trainer.state.fn == TrainerFn.FITTING:
            self.epochs = TrainingEpochs(trainer, self.stream, self._synchronize)

    def lay_out(self) -> None:
        """Find this rank's place among the others, once they have met."""

    @property
    def draws_apart(self) -> bool:
        """Whether ranks draw different numbers in their steps."""
        return self.data_parallel_size > 1

    def _synchronize(self) -> None:
        """Draw on as the first rank does."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            set_state(self.broadcast(get_state()))

    def teardown(self) -> None:
        """A fit or an evaluation is over: leave Lightning's loop and the task as they were."""
        self.let_go()
        super().teardown()

    def let_go(self) -> None:
        """Take back what was put in the way of a call."""
        if self.epochs is not None:
            self.epochs.end()
            self.epochs = None
        for name in ("log", "log_dict"):
            if getattr(vars(self._connected_module).get(name), "is_synced", False):
                delattr(self._connected_module, name)

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
        """Make ready for what follows the setup: a resumed fit, and steps of several ranks."""
        trainer = self._connected_module.trainer
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
        self.count_together()

    def count_together(self) -> None:
        """Make logged values, metrics and clipping those of all ranks, whatever the task asks."""
        module = self._connected_module
        if "log" not in vars(module):
            module.log = synced(module.log)  # type: ignore[method-assign]
            module.log_dict = synced(module.log_dict)  # type: ignore[method-assign]
        for metric in module.modules():
            if isinstance(metric, Metric) and metric.process_group is None:
                metric.process_group = self.samples_group
        if self._together is None and self.data_parallel_size > 1:
            self._together = LoggingTogether(self.root_device, self.samples_group)
        plugin = self.precision_plugin
        if type(plugin).clip_grad_by_norm is Precision.clip_grad_by_norm:
            plugin.clip_grad_by_norm = self._clip_by_norm  # type: ignore[method-assign]

    def _clip_by_norm(self, optimizer: Optimizer, clip_val: float) -> None:
        parameters = list(self.precision_plugin.main_params(optimizer))
        clip_by_global_norm(parameters, clip_val, self.parts_group, self.counted(parameters))

    def process_dataloader(self, dataloader: object) -> object:
        """Give this rank its share. Lightning calls this for every loader."""
        trainer = self._connected_module.trainer
        loader = self.shared(dataloader)
        if trainer.training and self.epochs is not None:
            loader = self.epochs.loader(loader)
        return loader

    def shared(self, loader: Any) -> Any:
        """What yields this rank's share of a loader's batches.

        Raises:
            UserError: If ranks would have to share what they cannot.
        """
        if not isinstance(loader, DataLoader):
            return loader
        place = {"rank": self.data_parallel_rank, "num_replicas": self.data_parallel_size}
        training = bool(self._connected_module.trainer.training)
        seed_workers(loader, self.data_parallel_rank)
        if is_stream(loader):
            return StreamLoader(loader, **place, training=training)
        refuse_shared(loader, self.data_parallel_size)
        if not has_indices(loader):
            return loader
        self._loaders += 1
        return RankLoader(
            without_state(loader),
            **place,
            stream=self.stream,
            number=self._loaders,
            training=training,
        )

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Move a batch; what augments it draws for this rank's samples."""
        trainer = self._connected_module.trainer
        if not trainer.training:
            self._look_at_share(trainer, dataloader_idx)
        with self._own(Draws.BATCH):
            return super().batch_to_device(batch, device, dataloader_idx)

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
        self.compare_streams(loaders)
        share = together([loader.share(number) for loader in loaders]) if loaders else None
        self._evaluated = dataloader_idx, number, share

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all ranks, or any of them, say yes: all of the world, whoever sees what."""
        if not (dist.is_available() and dist.is_initialized()):
            return decision
        votes = torch.tensor(int(decision), device=self.root_device)
        dist.all_reduce(votes)
        return bool(votes == dist.get_world_size()) if all else bool(votes)
