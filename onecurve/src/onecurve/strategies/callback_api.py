"""The methods of a strategy that callbacks may call, so that no callback branches on the strategy.

These come beside Lightning's own: ``reduce``, ``broadcast``, ``reduce_boolean_decision``,
``lightning_module_state_dict`` (the full network, on rank 0) and ``load_model_state_dict``.
Unless noted otherwise, all ranks must call a method together.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor, nn
from torch.optim import Optimizer

from ..batch.position import KEY as RESUME
from ..batch.random import kept_state
from ..batch.resume import TrainingEpochs
from ..batch.share import shared_in_step
from ..checkpoint.format import by_own_names, drop_modules, reject_incomplete_state
from ..checkpoint.lazy_tensors import optimizer_states_here
from ..checkpoint.storage import LocalFiles, read_on_nodes
from ..compat.of_lightning import mode_of, training_loaders
from ..compat.patches import replaced
from ..errors import UserError, say, some_of
from .clip import global_norm
from .collectives import gather_uneven, reject_unlike, shapes_of_all
from .context_parallel import positions
from .differences import Drift
from .fsdp.state import load_full_state, shard_optimizer_state
from .full_parameters import full_parameters
from .mesh.ranks import Ranks, gather_objects
from .mesh.sizes import Sizes
from .parallelism import Applied, Parallelism, State
from .prepare import example_of
from .step import Steps
from .unsupported import reject_saved_shards


class CallbackAPI(Strategy):
    """The contract between strategies and callbacks.

    Attributes:
        ranks: This rank among the others; None in one process, or before a process group exists.
        steps: Runs the steps of the task.
        parallelisms: The parallelisms, from the outermost to the innermost axis.
        applied: What they do with the task, once they are applied.
        samples_group: The ranks that hold the same parameters and see different samples; None
            stands for all ranks.
        parts_group: The ranks that hold different parts of one network; None if each holds all.
        epochs: The epochs of the current fit; None outside of a fit.
        _ended_with: Their state at the end of the last fit, until another one begins.
        drift: Compares the ranks' copies in a fit; None where ranks see the same samples.
    """

    ranks: Ranks | None = None
    steps: Steps | None = None
    parallelisms: Sequence[Parallelism] = ()
    applied: Sequence[Applied] = ()
    samples_group: dist.ProcessGroup | None = None
    parts_group: dist.ProcessGroup | None = None
    epochs: TrainingEpochs | None = None
    _ended_with: dict[str, Any] | None = None
    drift: Drift | None = None
    _reported_left_out: bool = False

    @property
    def sizes(self) -> Sizes:
        """The number of ranks along each axis."""
        return Sizes() if self.ranks is None else self.ranks.sizes

    @property
    def data_parallel_rank(self) -> int:
        """This rank's number among the ranks that see different samples."""
        return 0 if self.ranks is None else self.ranks.data_parallel_rank

    @property
    def data_parallel_size(self) -> int:
        """The number of ranks that see different samples."""
        return self.sizes.data_parallel

    @property
    def samples_seen(self) -> int:
        """Training samples that all ranks have processed since this process began."""
        return 0 if self.steps is None else self.steps.samples_seen

    # Values

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """All-reduce over the ranks that see different samples.

        A mean in a step, or in a hook at the end of its batch, counts by sample. It is computed in
        floating point: Lightning's own divides integers without remainder on gloo (its batch-size
        counter is one).
        """
        if self.ranks is None:
            return tensor
        group = group or self.samples_group
        if isinstance(tensor, Tensor) and tensor.ndim:  # all that is logged is a number
            reject_unlike("reduce", shapes_of_all(tensor, group))
        if reduce_op not in ("mean", "avg") or not isinstance(tensor, Tensor):
            return super().reduce(tensor, group, reduce_op)  # type: ignore[safe-super]
        # Counters as well: float32 cannot represent a third of one exactly.
        double = tensor.dtype == torch.float64 or self.precision_plugin.precision == "64-true"
        total = tensor.double() if double else tensor.float()
        total = total * self._steps.weight_in_means
        dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
        return total / dist.get_world_size(group)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether the decision is true on all ranks of the world, or on any of them."""
        return decision if self.ranks is None else self.ranks.all_agree(decision, all)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """All-gather over the ranks that see different samples, where a task names the world.

        Returns:
            The tensor itself, as in one process, if all ranks see the same samples.
        """
        if group is not None and group is dist.group.WORLD:
            if self.data_parallel_size == 1:
                return tensor
            group = self.samples_group
        if self.ranks is not None:
            reject_unlike("all_gather", shapes_of_all(tensor, group))
        return super().all_gather(tensor, group, sync_grads)  # type: ignore[safe-super]

    # Samples

    def example_inputs(self) -> tuple[Tensor, ...] | None:
        """The task's `example_input_array`, in the run's precision; None without one."""
        return example_of(self._connected_module, self.precision_plugin)

    def training_batches(self) -> Iterator[tuple[Any, bool]]:
        """This rank's share of every training batch of an epoch, on its device, as in training.

        Yields:
            A share, and whether it counts: with fewer samples than ranks, some ranks get a sample
            of another rank.
        """
        trainer = self._connected_module.trainer
        with kept_state(), replaced(trainer.state, "stage", RunningStage.TRAINING):
            asked = training_loaders(trainer)
            # A copy, because a fit may be iterating over the original.
            loaders = CombinedLoader(asked.iterables, mode_of(asked))
            loaders.flattened = [self.shared(each) for each in loaders.flattened]
            count = trainer.num_training_batches
            for batch, index, _ in islice(loaders, int(count) if count != inf else None):
                shared = shared_in_step(loaders.flattened, index)
                counts = not shared or any(loader.share(index).size for loader in shared)
                batch = self.precision_plugin.convert_input(batch)
                yield self.batch_to_device(batch, self.root_device), counts

    def shared(self, loader: Any) -> Any:
        """Wrap a loader so that it yields this rank's share."""
        return loader

    def gather_from_replicas(self, value: Any) -> list[Any]:
        """Gather a value from every rank that sees different samples, in the order of the batch.

        The value must be picklable, with tensors on the CPU, as for the next two methods.
        """
        return gather_objects(value, self.samples_group)

    def all_samples(self, tensor: Tensor) -> Tensor:
        """Gather rows of all ranks in the order of the global batch; differentiable.

        For a loss that compares samples with each other, such as in-batch negatives: computed on
        every rank from all rows, it is the loss of the global batch. All ranks call this together.

        Args:
            tensor: One row per sample of this rank (n, ...).

        Returns:
            One row per sample of the global batch (N, ...).
        """
        if not all(axis.sees_share() for axis in self.applied):
            raise UserError(
                "all_samples: needs the full batch, and a pipeline computes loss(outputs, targets) "
                "for each micro-batch; use strategy.schedule=gpipe, which takes any loss, or "
                "strategy=ddp"
            )
        if self.data_parallel_size == 1:
            return tensor
        context = self._steps.current
        if context is not None and self._steps.is_running and not context.counts:
            tensor = tensor[:0]  # a rank without samples works on another rank's
        return gather_uneven(tensor, self.samples_group)

    def positions(self, tensor: Tensor) -> Tensor:
        """The positions (T,) of a tensor (N, T, ...) in its sequence: see `onecurve.positions`."""
        return positions(tensor)

    # The network

    @torch.no_grad()
    def forward_only(self, batch: Any) -> None:
        """Pass a share through the network at once, in its current mode (training or evaluation).

        Args:
            batch: The inputs, or a tuple that begins with them.
        """
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        with self.precision_plugin.forward_context():
            self._holds_state.forward(self._connected_module, inputs)

    def gather_from_ranks(self, value: Any) -> list[Any]:
        """Gather a value from every rank."""
        return gather_objects(value, None)

    def iter_full_tensors(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor unsharded on rank 0, one after the other; nothing on the others.

        All ranks must exhaust the iterator.

        Args:
            tensors: This rank's shards of parameters, or of their gradients, by parameter name.
        """
        if self.parallelisms:
            yield from self._state.iter_full_tensors(self._connected_module, tensors)
        elif self.is_global_zero:
            yield from tensors.items()

    @contextmanager
    def full_parameters(self, task: nn.Module | None = None) -> Iterator[None]:
        """Within the context the parameters and buffers of the task are full, on every rank.

        To read, draw or change them in place, outside of a step; changes are written back to the
        shards. All ranks make the same changes, and call this together.

        Args:
            task: The task, or any module of it: all of the task is full.
        """
        if self.ranks is None or not self.parallelisms:
            yield
            return
        state = self._state.full_state(self._connected_module)
        with full_parameters(self._connected_module, state, self.ranks):
            yield

    def gradient_norm(self, optimizer: Optimizer | None = None) -> Tensor:
        """The 2-norm over the gradients of the full network, the same on every rank.

        Args:
            optimizer: Include only parameters of this optimizer; None for all.
        """
        parameters: Iterable[Tensor] = self._connected_module.parameters()
        if optimizer is not None:
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
        return global_norm(self.counted(parameters), self.parts_group)

    def counted(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """The parameters that no other rank with a part of the same network counts."""
        return self._state.counted(list(parameters))

    # Checkpoints: files of one format for all strategies

    def after_batch(self, action: Callable[[], None]) -> None:
        """Do something once the training batch is over, and the task's `on_train_batch_end` is.

        A callback that saves a checkpoint at the end of a batch does it here: Lightning calls the
        task's hook after those of all callbacks.
        """
        assert self.epochs is not None
        self.epochs.after_batch(action)

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """Writes and reads checkpoints: full files, unless the Trainer has another plugin."""
        if self._checkpoint_io is None:
            self._checkpoint_io = LocalFiles()
        return super().checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint: a full one on rank 0, a sharded one on all ranks."""
        if self.drift is not None and self.epochs is not None:
            self.drift.report()
        state = self._ended_with if self.epochs is None else self.epochs.state()
        if state is not None and "loops" in checkpoint:
            checkpoint["loops"] = {**checkpoint["loops"], "fit_loop": state["fit_loop"]}
            checkpoint[RESUME] = state[RESUME]
        if self.parallelisms and (names := drop_modules(checkpoint)):
            if self.is_global_zero and not self._reported_left_out:
                say(
                    f"checkpoint: {some_of(names)} of the hyperparameters is left out, because "
                    f"ranks hold parts of it; save_hyperparameters(ignore={names}) always leaves "
                    "it out"
                )
            self._reported_left_out = True
        if self.parallelisms:
            reject_saved_shards(checkpoint)
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
        # Not if a callback restores the state from the beginning of this fit: loaders exist then.
        if epochs is not None and epochs.trainer.train_dataloader is None:
            reject_incomplete_state(checkpoint, checkpoint_path)
            self._take_live_weights(checkpoint)
            epochs.resume_from(checkpoint)
        return checkpoint

    def _take_live_weights(self, checkpoint: dict[str, Any]) -> None:
        """Resume from the weights of training where the saved ones are an average of them."""
        callbacks: Any = self._connected_module.trainer.callbacks  # type: ignore[attr-defined]
        is_kept = any(getattr(each, "keeps_live_weights", False) for each in callbacks)
        if is_kept or "live" not in checkpoint.get("averages", {}):
            return
        checkpoint["state_dict"] = checkpoint["averages"].pop("live")
        if self.is_global_zero:
            print(
                "resume: the checkpoint has the exponential average that was kept, and none is "
                "kept now: training continues from its own weights, which are there as well"
            )

    @property
    def keeps_shards(self) -> bool:
        """Whether checkpoints are sharded: every rank writes what it holds."""
        return isinstance(self.checkpoint_io, LocalFiles) and self.checkpoint_io.keeps_shards

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The network's state under the original names: full on rank 0, empty on the others.

        For a sharded checkpoint, what this rank holds.
        """
        task, state = self._connected_module, self._state
        return state.local_state(task) if self.keeps_shards else state.full_state(task)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load this rank's part of a full network's state."""
        task = self._connected_module
        load_full_state(task, by_own_names(task, checkpoint["state_dict"]), strict)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Like `lightning_module_state_dict`; parameters have Lightning's integer ids."""
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        if not self.parallelisms:
            return super().optimizer_state(optimizer)
        if self.keeps_shards:
            return optimizer.state_dict()
        return self._state.full_optimizer_state(self._connected_module, optimizer)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load this rank's part of the optimizers' full states."""
        states = optimizer_states_here(checkpoint["optimizer_states"], self.optimizers)
        if not self.parallelisms:
            super().load_optimizer_state_dict({"optimizer_states": states})
            return
        for optimizer, state in zip(self.optimizers, states, strict=False):
            optimizer.load_state_dict(shard_optimizer_state(state, optimizer))

    @property
    def _holds_state(self) -> Applied:
        """The outermost axis that knows which part of the network's state this rank holds."""
        return next((axis for axis in self.applied if axis.state is not None), Applied())

    @property
    def _state(self) -> State:
        return self._holds_state.state or State()

    @property
    def _steps(self) -> Steps:
        assert self.steps is not None
        return self.steps

    @property
    def _connected_module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module
