"""The Lightning strategy behind all of ours: a task trains on any mesh as in one process.

`OneCurve` connects its collaborators: a mesh of ranks (`mesh/ranks.py`), the runner of the task's
steps (`step.py`), one object per axis (`parallelism.py`), loaders that share out global batches
(`batch/`) and checkpoint files (`checkpoint/`). The strategies that a user chooses are presets.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.layer_sync import LayerSync, TorchSyncBatchNorm
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ..batch.loader import shared_loader
from ..batch.random import Draws, RankStream, get_state, kept_state, set_state
from ..batch.resume import TrainingEpochs
from ..batch.workers import keep_workers
from ..checkpoint.resume_changes import fit_to_length
from ..checkpoint.storage import LocalFiles
from ..compat.of_lightning import loaded_checkpoint, move_optimizers, shares_no_samples
from ..errors import UserError, say
from ..torch_versions import require
from .ac_compile import Compiled, Recomputed, apply_ac_and_compile, variants_kept
from .batchnorm import is_exact, report_statistics_of_shares, synchronized
from .callback_api import CallbackAPI
from .clip import clipping_over_ranks
from .drift import Drift
from .fsdp.state import replacements_noted, take_shards
from .layout import lay_out, move, reject_other_shards
from .manual_backward import ManualBackward
from .mesh.ranks import laid_out
from .parallelism import Parallelism
from .pipeline.remote import restore
from .returned import Outputs, reject_without_gradient, report_no_optimizer
from .step import TaskStep
from .step_log import syncing_over
from .unsupported import explain_error, reject_scaled_rows

Backend = Literal["auto", "gloo", "nccl"]


class OneCurve(CallbackAPI):
    """A mixin for one of Lightning's own strategies, which handles devices and process groups.

    Args:
        axes: The number of ranks along each axis; one of them may be "auto" for the ranks that the
            others leave. None for one process.
        parallelisms: The parallelisms, from the outermost to the innermost axis.
        activation_checkpointing: What the backward pass recomputes: see `ac_compile`.
        backend: The process group backend: "gloo", "nccl", or "auto" for PyTorch's default (nccl
            on GPUs, gloo on CPUs).
            https://docs.pytorch.org/docs/stable/distributed.html#backends
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
        lightnings: Arguments of Lightning's strategy.

    Attributes:
        name: The strategy's name in ``strategy=...``.
        prints_layers: Whether to print how ranks share the layers. Set it before a fit.
        compiled: What torch.compile compiles: see `ac_compile`. Set it before a fit.
        compile_backend: The backend of torch.compile; "aot_eager" traces without generating code.
    """

    name: str = ""
    prints_layers: bool = True
    compiled: Compiled = "none"
    compile_backend: str = "inductor"
    global_rank: int
    world_size: int
    _layer_sync: LayerSync | None = None
    _loaders: int = 0
    _is_first_step: bool = True
    _manual_backward: ManualBackward | None = None

    def __init__(
        self,
        axes: Mapping[str, int | Literal["auto"]] | None = None,
        parallelisms: Sequence[Parallelism] = (),
        activation_checkpointing: Recomputed = "none",
        backend: Backend = "auto",
        timeout_seconds: float | None = None,
        **lightnings: Any,
    ) -> None:
        if timeout_seconds is not None:
            lightnings["timeout"] = timedelta(seconds=timeout_seconds)
        if backend != "auto":
            lightnings["process_group_backend"] = backend
        super().__init__(**lightnings)
        self.parallelisms = list(parallelisms)
        self.activation_checkpointing = activation_checkpointing
        self._axes = axes
        self._outputs = Outputs()
        # Undone at the end of a fit or an evaluation.
        self._while_connected = ExitStack()

    # Set-up, in the order of Lightning's calls

    def connect(self, model: LightningModule) -> None:
        """Connect the task, and convert it if the run is in float64.

        Lightning converts it later: after callbacks are set up, and after a checkpoint's float64
        values have been copied into float32 parameters. A lower precision is left to Lightning, so
        that copies of the weights that callbacks make stay in float32.
        """
        super().connect(model)
        if self.precision_plugin.precision == "64-true":
            self.precision_plugin.convert_module(model)

    def setup_environment(self) -> None:
        """Join the other ranks, if there are any."""
        with kept_state():  # Lightning seeds the generators again with several ranks
            super().setup_environment()
        task = self._connected_module
        # Lightning's DistributedSampler would split the samples before `process_dataloader`, and
        # repeat some. This spares users Trainer(use_distributed_sampler=False).
        shares_no_samples(task.trainer)
        if self.step is None:
            self.step = self._first_step()
        stream = self.step.stream
        self._synchronize()
        stream.reseed()
        self._ended_with = None
        if task.trainer.state.fn == TrainerFn.FITTING:
            self.epochs = TrainingEpochs(task.trainer, stream, self._synchronize)
        self.step.begin(task, self.name, self.epochs)
        if self.ranks is not None:
            for parallelism in self.parallelisms:
                parallelism.join(self.name, self.ranks, self.step, self.precision_plugin)

    def _first_step(self) -> TaskStep:
        stream = RankStream(0, apart=())
        if self._axes is not None:
            timeout: timedelta | None = getattr(self, "_timeout", None)
            here = (self.global_rank, self.world_size, self.root_device, timeout)
            self.ranks = ranks = laid_out(self.name, self._axes, *here)
            sizes = ranks.sizes
            self.parallelisms = [each for each in self.parallelisms if each.is_needed(sizes)]
            self.samples_group = ranks.samples_group
            self.parts_group = ranks.pipeline_group if sizes.pipeline > 1 else None
            if ranks.draw_apart:
                apart = tuple(Draws) if sizes.data_parallel > 1 else (Draws.STEP,)
                stream = RankStream(ranks.data_parallel_rank, apart)
        return TaskStep(self.ranks, stream, self._call_task, self.precision_plugin.forward_context)

    def _get_process_group_backend(self) -> str:
        backend: str = super()._get_process_group_backend()  # type: ignore[misc]
        # Shards on the CPU are also clipped and gathered there.
        offloads = any(each.offloads for each in self.parallelisms)
        return "cpu:gloo,cuda:nccl" if offloads and backend == "nccl" else backend

    def _synchronize(self) -> None:
        """Copy the first rank's generator states to all ranks."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            set_state(self.broadcast(get_state()))

    def setup(self, trainer: Trainer) -> None:
        """Distribute the task over the ranks, and prepare for its steps."""
        Strategy.setup(self, trainer)
        task = self._connected_module
        if trainer.state.fn == TrainerFn.FITTING:
            # Lightning loads the states next. Only in a fit: a test may load a checkpoint, too.
            schedulers = [config.scheduler for config in self.lr_scheduler_configs]
            for line in fit_to_length(loaded_checkpoint(trainer), schedulers, self.optimizers):
                if self.is_global_zero:
                    say(line)
        self._step.patch()
        for parallelism in self.parallelisms:
            parallelism.begin(task)
        if self.ranks is not None and self.samples_group is not dist.group.WORLD:
            self._while_connected.enter_context(syncing_over(self.samples_group))
        if self.parallelisms:
            clipping = clipping_over_ranks(task, self.parts_group, self.counted)
            self._while_connected.enter_context(clipping)
        if is_exact(self._layer_sync, self.sizes):
            self._while_connected.enter_context(synchronized(self._step, self.samples_group))
        self._is_first_step, self.drift = True, None
        if self.data_parallel_size > 1 and trainer.state.fn == TrainerFn.FITTING:
            here = (self.root_device, self.samples_group, self.is_global_zero)
            self.drift = Drift(task, self.name, *here)
        self._manual_backward = None
        if self.ranks is not None and not task.automatic_optimization:
            self._manual_backward = ManualBackward(task, self.name)
            self._while_connected.enter_context(self._manual_backward.watched())
        context = self.ranks and self.ranks.context_group
        sees_some = self.data_parallel_size > 1 or context is not None
        if (sees_some or self.parts_group) and trainer.state.fn == TrainerFn.FITTING:
            reject_scaled_rows(task, self.name, looks_up_all=not sees_some)

    def model_to_device(self) -> None:
        """Reduce the task to this rank's part, unless that has been done, and move it."""
        task = self._connected_module
        self._while_connected.enter_context(variants_kept(task, self.compiled))
        reject_other_shards(task, self.name, self.sizes, self.parallelisms)
        sync = self._layer_sync
        if sync is not None and not isinstance(sync, TorchSyncBatchNorm):
            sync.apply(task)
        if not any(each.is_applied(task) for each in self.parallelisms):
            with replacements_noted(task):
                restore(task, self.root_device)
                self._lay_out(task)
        if not self.parallelisms:
            self.apply_ac_and_compile()
            super().model_to_device()  # type: ignore[safe-super]
            return
        self._move(task, self.root_device)
        for parallelism in self.parallelisms:
            self._while_connected.enter_context(parallelism.connected(task))

    def _lay_out(self, task: LightningModule) -> None:
        if self.ranks is None or not self.parallelisms:
            return
        lay_out(task, self.ranks, self.parallelisms, self.apply_ac_and_compile)

    def _setup_model(self, model: Any) -> Any:
        """Leave a task alone that parallelisms have distributed."""
        return model if self.parallelisms else super()._setup_model(model)

    def apply_ac_and_compile(self, layers: Iterable[nn.Module] | None = None) -> None:
        """Apply activation checkpointing and torch.compile to these layers, or to all."""
        if self.sizes.context > 1 and self.compiled != "none":
            require("strategy.context with compile")
        apply_ac_and_compile(
            self._connected_module,
            self.activation_checkpointing,
            self.compiled,
            backend=self.compile_backend,
            layers=layers,
        )

    def _move(self, module: nn.Module, device: torch.device) -> None:
        move(module, device, lambda tensor: all(each.moves(tensor) for each in self.parallelisms))

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Create the optimizers from this rank's parameters."""
        super().setup_optimizers(trainer)
        if trainer.is_global_zero:
            report_no_optimizer(self._connected_module, self.optimizers)
        for optimizer in self.optimizers:
            take_shards(optimizer, self.name)
        for parallelism in self.parallelisms:
            parallelism.set_up_optimizers(trainer, self.optimizers)

    # Batches

    def process_dataloader(self, dataloader: object) -> object:
        """Wrap a loader so that it yields this rank's share."""
        trainer = self._connected_module.trainer
        keep_workers(dataloader)
        loader = self.shared(dataloader)
        if trainer.training and self.epochs is not None:
            loader = self.epochs.loader(loader)
        return loader

    def shared(self, loader: Any) -> Any:
        """Wrap a loader so that it yields this rank's share; reject what ranks cannot share."""
        step = self._step
        self._loaders += 1
        training = bool(self._connected_module.trainer.training)
        return shared_loader(loader, step.rank, step.size, step.stream, self._loaders, training)

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Move a batch; hooks that augment it draw this rank's own random numbers."""
        if self.ranks is None:
            return super().batch_to_device(batch, device, dataloader_idx)
        if not self._connected_module.trainer.training:
            self._step.note_moved_batch(dataloader_idx)
        with self._step.own(Draws.BATCH):
            return super().batch_to_device(batch, device, dataloader_idx)

    def on_validation_start(self) -> None:
        """Evaluate with the first rank's buffers, which are those that a checkpoint holds."""
        super().on_validation_start()
        self._step.begin_evaluation()
        if self.parallelisms and self.ranks is not None:
            buffers = self._connected_module.buffers()
            self.ranks.copy_first(*(buffer for buffer in buffers if not buffer.is_meta))

    def on_test_start(self) -> None:
        super().on_test_start()
        self._step.begin_evaluation()

    def on_predict_start(self) -> None:
        super().on_predict_start()
        self._step.begin_evaluation()

    # Steps

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.epochs is not None:
            self.epochs.train_starts()

    def training_step(self, *args: Any) -> STEP_OUTPUT:
        """Run the task's step; `backward` weights its loss by this rank's share of the batch."""
        if isinstance(self.checkpoint_io, LocalFiles):
            # Raise the error of a checkpoint that could not be written in the background.
            self.checkpoint_io.poll()
        task = self._connected_module
        if self._is_first_step and self.is_global_zero:
            report_statistics_of_shares(task, self.name, self.sizes, self._layer_sync)
        self._is_first_step = False
        accumulates = task.trainer.accumulate_grad_batches > 1
        return self._step.train_accumulated(*args) if accumulates else self._step.train(*args)

    def _of_task(self, *args: Any) -> STEP_OUTPUT:
        """Call the task's training step, and reject what cannot train."""
        output = super().training_step(*args)
        self._outputs.check(self._connected_module, output, self.name)
        return output

    def validation_step(self, *args: Any) -> STEP_OUTPUT:
        return self._step.evaluate("validation_step", *args)

    def test_step(self, *args: Any) -> STEP_OUTPUT:
        return self._step.evaluate("test_step", *args)

    def predict_step(self, *args: Any) -> Any:
        return self._step.predict(*args)

    def _call_task(self, name: str, *args: Any) -> Any:
        """Call a step of the task through Lightning, inside all parallelisms."""
        method = self._of_task if name == "training_step" else getattr(super(), name)
        step: Callable[[], Any] = partial(method, *args)
        for parallelism in reversed(self.parallelisms):
            step = partial(parallelism.run, name, args[0], step)
        if self.ranks is None:
            return step()
        try:
            return step()
        except Exception as error:
            if line := self._explain(error):
                raise line from error
            raise

    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Weight a loss by this rank's share, and run its backward pass."""
        task, loss = self._connected_module, closure_loss
        if task.automatic_optimization:
            loss = self._step.scaled(loss)
        loss = self._weighed(loss)
        if task.automatic_optimization:
            reject_without_gradient(task, loss)
        if self._manual_backward is None:
            return super().backward(loss, optimizer, *args, **kwargs)
        with self._manual_backward.runs(kwargs.pop("inputs", None)):
            return super().backward(loss, optimizer, *args, **kwargs)

    def _weighed(self, loss: Tensor) -> Tensor:
        for parallelism in self.parallelisms:
            loss = parallelism.before_backward(self._connected_module, loss)
        return loss if self._step.weight == 1.0 else loss * self._step.weight

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Lightning enters this for a batch after which the optimizer does not step."""
        lightnings = getattr(super(), "block_backward_sync", nullcontext)
        with ExitStack() as stack:
            stack.enter_context(lightnings())
            for parallelism in self.parallelisms:
                stack.enter_context(parallelism.accumulating())
            yield

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Give LBFGS, which decides by the loss, the same loss on all ranks."""

        def backward() -> Any:
            result = closure()
            if isinstance(optimizer, LBFGS):
                return result if result is None else self.reduce(self._step.scaled(result))
            return result

        output = super().optimizer_step(optimizer, backward, model, **kwargs)
        if self.drift is not None:
            self.drift.after_step(optimizer)
        return output

    # The end

    def on_train_end(self) -> None:
        super().on_train_end()
        assert self.epochs is not None
        self._ended_with = self.epochs.state()
        for parallelism in self.parallelisms:
            parallelism.check()

    def on_exception(self, exception: BaseException) -> None:
        """Explain PyTorch's errors in one line, also outside of a step."""
        super().on_exception(exception)
        if self.lightning_module is not None:
            exception.__cause__ = self._explain(exception) or exception.__cause__

    def _explain(self, error: BaseException) -> BaseException | None:
        if isinstance(error, UserError):
            return None
        task = self._connected_module
        lines = (each.explained(error, task) for each in self.parallelisms)
        return explain_error(error, task, self.name) or next(filter(None, lines), None)

    def teardown(self) -> None:
        """Restore the task and Lightning's loops after a fit or an evaluation."""
        self._while_connected.close()
        if self.epochs is not None:
            self.epochs.end()
            self.epochs = None
        if self.step is not None:
            self.step.end()
        if not self.parallelisms:
            super().teardown()
            return
        # Instead of Lightning's teardown, which would move parameters on the meta device.
        move_optimizers(self.optimizers, torch.device("cpu"))
        # After an exception its traceback may hold parameters that then cannot be moved. Ignore
        # that, so that the first error is the one that is shown.
        with nullcontext() if sys.exc_info()[0] is None else suppress(RuntimeError, AttributeError):
            self._move(self._connected_module, torch.device("cpu"))
        self.precision_plugin.teardown()
        cast(Any, self.accelerator).teardown()
        self.checkpoint_io.teardown()
