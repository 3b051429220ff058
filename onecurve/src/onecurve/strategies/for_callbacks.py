"""What a callback may ask of a strategy, so that it needs no branch for any of them.

Beside Lightning's own: ``reduce``, ``broadcast``, ``reduce_boolean_decision``,
``lightning_module_state_dict`` (the full network, on rank 0) and ``load_model_state_dict``.
Where nothing else is said, all ranks call a method together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import RunningStage
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric

from ..batch.random import kept_state
from ..batch.resume import Place, TrainingEpochs
from ..batch.share import shared_in_step
from ..checkpoint.format import drop_modules
from ..checkpoint.lazy_tensors import optimizer_states_here
from ..checkpoint.storage import LocalFiles, read_on_nodes
from ..compat.of_lightning import combined_alike, ends_with_its_epoch, training_loaders
from ..errors import UserError, say, some_of
from .clip import global_norm
from .gather import gather_uneven
from .mesh.ranks import Ranks, each_rank_has
from .mesh.sizes import Sizes
from .parallelism import Parallelism
from .prepared import example_of
from .redirect import replaced
from .step import TaskStep


class ForCallbacks(Strategy):
    """The contract between strategies and callbacks.

    Attributes:
        ranks: Once they have met; None in one process.
        step: The step of the task that is under way.
        parallelisms: What is done along the axes, from the outermost to the innermost.
        samples_group: The ranks that hold the same parameters and see different samples; None
            stands for all ranks.
        parts_group: The ranks that hold different parts of one network; None if each holds all.
        epochs: Those of the fit under way; None outside of one.
    """

    ranks: Ranks | None = None
    step: TaskStep | None = None
    parallelisms: Sequence[Parallelism] = ()
    samples_group: dist.ProcessGroup | None = None
    parts_group: dist.ProcessGroup | None = None
    epochs: TrainingEpochs | None = None
    _said_what_is_left_out: bool = False

    @property
    def sizes(self) -> Sizes:
        """How many ranks there are along each axis."""
        return Sizes() if self.ranks is None else self.ranks.sizes

    @property
    def data_parallel_rank(self) -> int:
        """This rank's coordinate among the ranks that see different samples."""
        return 0 if self.ranks is None else self.ranks.data_parallel_rank

    @property
    def data_parallel_size(self) -> int:
        """How many ranks see different samples."""
        return self.sizes.data_parallel

    @property
    def samples_seen(self) -> int:
        """Training samples processed by all ranks in this process's life."""
        return 0 if self.step is None else self.step.samples_seen

    # Values

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """All-reduce over the ranks that see different samples.

        A mean during a training step counts by sample, and in floating point: Lightning's own
        divides integers without remainder on gloo (its batch-size counter is one).
        """
        if self.ranks is None:
            return tensor
        group = group or self.samples_group
        if reduce_op not in ("mean", "avg") or not isinstance(tensor, Tensor):
            return super().reduce(tensor, group, reduce_op)  # type: ignore[safe-super]
        # Counters, too: a third of one is no number of float32.
        double = tensor.dtype == torch.float64 or self.precision_plugin.precision == "64-true"
        total = tensor.double() if double else tensor.float()
        total = total * self._step.weight
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
        return total / dist.get_world_size(group)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all ranks, or any of them, say yes: all of the world, whoever sees what."""
        return decision if self.ranks is None else self.ranks.all_agree(decision, all)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """What the ranks have of different samples, where a task asks: it names the whole world.

        Returns:
            As in one process the tensor itself, if all ranks see the same samples.
        """
        if group is not None and group is dist.group.WORLD:
            if self.data_parallel_size == 1:
                return tensor
            group = self.samples_group
        return super().all_gather(tensor, group, sync_grads)  # type: ignore[safe-super]

    # Samples

    def example_inputs(self) -> tuple[Tensor, ...] | None:
        """What enters the network, from the task or the first batch: see `example_of`.

        Returns:
            Tensors where the loader or the task has them; None if nothing says what enters.
        """
        return example_of(self._connected_module.trainer)

    def training_batches(self) -> Iterator[tuple[Any, bool]]:
        """This rank's share of every training batch of an epoch, on its device, as in training.

        Yields:
            A share, and whether it counts: a batch of fewer samples than ranks leaves some without
            one of their own.
        """
        trainer = self._connected_module.trainer
        stage, trainer.state.stage = trainer.state.stage, RunningStage.TRAINING
        try:
            with kept_state():
                yield from self._shares_of_epoch(trainer)
        finally:
            trainer.state.stage = stage

    def _shares_of_epoch(self, trainer: Trainer) -> Iterator[tuple[Any, bool]]:
        asked = training_loaders(trainer)
        # Training may be under way over that one.
        loaders = combined_alike(asked, asked.iterables)
        loaders.flattened = [self.shared(each) for each in loaders.flattened]
        count = trainer.num_training_batches
        for batch, index, _ in islice(loaders, int(count) if count != inf else None):
            shared = shared_in_step(loaders, index)
            counts = not shared or any(loader.share(index).size for loader in shared)
            batch = self.precision_plugin.convert_input(batch)
            yield self.batch_to_device(batch, self.root_device), counts

    def shared(self, loader: Any) -> Any:
        """What yields this rank's share of a loader's batches."""
        return loader

    def of_all_samples(self, value: Any) -> list[Any]:
        """What each rank has of its samples, in the order of the samples in a batch.

        Args:
            value: Anything that can be pickled, with tensors on the CPU.
        """
        return each_rank_has(value, self.samples_group)

    def all_samples(self, tensor: Tensor) -> Tensor:
        """The rows of all ranks, in the order of the global batch; gradients flow back to each.

        For a loss that compares samples with each other, as of in-batch negatives: computed on
        every rank from all rows, it is the loss of the whole batch. All ranks call it together.

        Args:
            tensor: A row for each sample of this rank (n, ...).

        Returns:
            A row for each sample of the global batch (N, ...).
        """
        if not all(each.sees_share for each in self.parallelisms):
            raise UserError("all_samples is of whole batches, and not of micro-batches")
        if self.data_parallel_size == 1:
            return tensor
        share = self._step.share
        if share is not None and not share.size:
            tensor = tensor[:0]  # what a rank without samples has is another's
        return gather_uneven(tensor, self.samples_group)

    # The network

    @torch.no_grad()
    def forward_only(self, batch: Any) -> None:
        """Pass the inputs of a share through the network in one piece, in the mode that it is in.

        Args:
            batch: The inputs, or a tuple whose first entry they are.
        """
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        with self.precision_plugin.forward_context():
            self._holder.forward(self._connected_module, inputs)

    def of_all_parts(self, value: Any) -> list[Any]:
        """What each rank of one network has of its part, in the order of the layers.

        Args:
            value: Anything that can be pickled, with tensors on the CPU.
        """
        return [value] if self.parts_group is None else each_rank_has(value, self.parts_group)

    def of_all_ranks(self, value: Any) -> list[Any]:
        """What each rank has, whatever it has a part of.

        Args:
            value: Anything that can be pickled, with tensors on the CPU.
        """
        return each_rank_has(value, None)

    def whole_input(self, layer: nn.Module, value: Tensor) -> Tensor:
        """What enters a layer of which this rank may have a part, and then gets a part (N, D).

        Args:
            layer: Where a hook has seen it. All ranks that share the layer call this.
            value: What the hook has seen (N, D / ranks), or (N, D) if it is whole.

        Returns:
            All of it (N, D).
        """
        for parallelism in self.parallelisms:
            value = parallelism.full_input(layer, value)
        return value

    def each_whole(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """On rank 0 the whole of each tensor, one after the other; elsewhere nothing.

        All ranks must go through all of it.

        Args:
            tensors: Parameters, or their gradients, as this rank holds them, by parameter name.
        """
        if self.parallelisms:
            yield from self._holder.each_full(self._connected_module, tensors)
        elif self.is_global_zero:
            yield from tensors.items()

    def gradient_norm(self, optimizer: Optimizer | None = None) -> Tensor:
        """The 2-norm over the gradients of the whole network, the same on every rank.

        Args:
            optimizer: Take those that it updates; None for all.
        """
        parameters: Iterable[Tensor] = self._connected_module.parameters()
        if optimizer is not None:
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
        return global_norm(self.counted(parameters), self.parts_group)

    def counted(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Of this rank's parameters those that no other rank of one network counts."""
        return self._holder.counted(list(parameters))

    # Checkpoints: files of one format for all strategies

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """What writes and reads checkpoints: full files, unless a Trainer was given another."""
        if self._checkpoint_io is None:
            self._checkpoint_io = LocalFiles()
        return super().checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint; where it is full, the first rank does."""
        if self.epochs is not None and "loops" in checkpoint:
            checkpoint["random"] = self.epochs.state()
        if self.parallelisms and (names := drop_modules(checkpoint)):
            if self.is_global_zero and not self._said_what_is_left_out:
                say(
                    f"checkpoint: {some_of(names)} of the hyperparameters is left out, of which "
                    f"ranks have parts; save_hyperparameters(ignore={names}) leaves it out always"
                )
            self._said_what_is_left_out = True
        with self._ungrouped_metrics():
            if self.keeps_shards:
                self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)
            else:
                super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, and remember where in its epoch a fit resumes."""
        read = partial(super().load_checkpoint, checkpoint_path, weights_only)
        spread = self.ranks is not None and self._connected_module.trainer.num_nodes > 1
        checkpoint = read_on_nodes(self, checkpoint_path, read) if spread else read()
        epochs = self.epochs
        # Not where a callback goes back to where this fit began: its loader is there already.
        if epochs is not None and epochs.trainer.train_dataloader is None:
            epochs.resume_from(Place(checkpoint))
            ends_with_its_epoch(epochs.trainer)
        return checkpoint

    @contextmanager
    def _ungrouped_metrics(self) -> Iterator[None]:
        """Let a task put its metrics into a checkpoint, where a group of ranks cannot be."""
        with ExitStack() as ungrouped:
            for part in self._connected_module.modules():
                if isinstance(part, Metric) and part.process_group is not None:
                    ungrouped.enter_context(replaced(part, "process_group", None))
            yield

    @property
    def keeps_shards(self) -> bool:
        """Whether every rank writes what it holds, so that nothing is gathered."""
        return isinstance(self.checkpoint_io, LocalFiles) and self.checkpoint_io.keeps_shards

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """On rank 0 the full network's state under the original names.

        For a sharded checkpoint what this rank holds.
        """
        task, holder = self._connected_module, self._holder
        return holder.local_state(task) if self.keeps_shards else holder.full_state(task)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take this rank's part of a full network's state."""
        self._holder.load_state(self._connected_module, checkpoint["state_dict"], strict)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """As `lightning_module_state_dict`; parameters have their usual ids."""
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        if not self.parallelisms:
            return super().optimizer_state(optimizer)
        if self.keeps_shards:
            return optimizer.state_dict()
        return self._holder.full_optimizer_state(self._connected_module, optimizer)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take this rank's part of the optimizers' full states."""
        states = optimizer_states_here(checkpoint["optimizer_states"], self.optimizers)
        if not self.parallelisms:
            super().load_optimizer_state_dict({"optimizer_states": states})
            return
        for optimizer, state in zip(self.optimizers, states, strict=False):
            self._holder.load_optimizer_state(self._connected_module, optimizer, state)

    @property
    def _holder(self) -> Parallelism:
        """What knows which part of the network's state this rank holds."""
        return next((each for each in self.parallelisms if each.holds_state), Parallelism())

    @property
    def _step(self) -> TaskStep:
        assert self.step is not None
        return self.step

    @property
    def _connected_module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module
