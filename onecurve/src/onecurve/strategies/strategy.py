"""The Lightning strategy behind all of ours: a task trains on any mesh as in one process.

`OneCurve` connects its collaborators: a mesh of ranks (`mesh/ranks.py`), the task's steps
(`step.py`), one object per axis (`parallelism.py`), loaders that share out global batches
(`batch/`) and checkpoint files (`checkpoint/`). The strategies that a user chooses are presets.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.layer_sync import LayerSync
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ..batch.loader import shared_loader
from ..batch.random import get_state, kept_state, set_state
from ..batch.resume import TrainingEpochs
from ..batch.workers import keep_workers
from ..checkpoint.resume_changes import fit_to_length
from ..checkpoint.storage import LocalFiles
from ..compat.of_lightning import loaded_checkpoint, move_optimizers, shares_no_samples
from ..errors import UserError, say
from .ac_compile import Compiled, apply_ac_and_compile, variants_kept
from .batchnorm import is_exact, synchronized, use_other_sync
from .callback_api import CallbackAPI
from .clip import clipping_over_ranks
from .collectives import own_gathers_checked
from .differences import Drift
from .layout import is_laid_out, lay_out, move, reject_other_shards
from .mesh.ranks import laid_out, stream_of
from .options import StrategyOptions
from .parallelism import Parallelism, Setting
from .pipeline.remote import restore
from .step import StepContext, Steps, run_step
from .step_log import syncing_over
from .unsupported import (
    ManualBackward,
    Outputs,
    explain_error,
    optimizers_explained,
    reject_early_optimizers,
    reject_scaled_rows,
    reject_unordered,
    reject_without_gradient,
    report_no_optimizer,
)


class OneCurve(CallbackAPI):
    """A mixin for one of Lightning's own strategies, which handles devices and process groups.

    Args:
        options: The arguments of the strategy.
        axes: The number of ranks along each axis; one of them may be "auto" for the ranks that the
            others leave. None for one process.
        parallelisms: The parallelisms, from the outermost to the innermost axis.

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
    _manual_backward: ManualBackward | None = None

    def __init__(
        self,
        options: StrategyOptions,
        axes: Mapping[str, int | Literal["auto"]] | None = None,
        parallelisms: Sequence[Parallelism] = (),
    ) -> None:
        super().__init__(**options.of_lightning())
        self.parallelisms = list(parallelisms)
        self.activation_checkpointing = options.activation_checkpointing
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
        if self.steps is None:
            self._join_ranks()
        self._synchronize()
        self._steps.stream.reseed()
        self._begin(self._connected_module)

    def _join_ranks(self) -> None:
        if self._axes is not None:
            here = (self.global_rank, self.world_size, self.root_device)
            waits = getattr(self, "_timeout", None)  # for the other ranks; None in one process
            self.ranks = ranks = laid_out(self.name, self._axes, *here, waits)
            self.parallelisms = [each for each in self.parallelisms if each.is_needed(ranks.sizes)]
            self.samples_group = ranks.samples_group
            self.parts_group = ranks.pipeline_group if ranks.sizes.pipeline > 1 else None
        precision = self.precision_plugin.forward_context
        stream = stream_of(self.ranks)
        self.steps = Steps(self.ranks, stream, self._call_task, precision)

    def _begin(self, task: LightningModule) -> None:
        """Begin a fit or an evaluation."""
        # Lightning's DistributedSampler would split the samples before `process_dataloader`, and
        # repeat some. This spares users Trainer(use_distributed_sampler=False).
        shares_no_samples(task.trainer)
        self._ended_with = None
        if task.trainer.state.fn == TrainerFn.FITTING:
            self.epochs = TrainingEpochs(task.trainer, self._steps.stream, self._synchronize)
        self._steps.begin(task, self.name, self._layer_sync)

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
        task, fits = self._connected_module, trainer.state.fn == TrainerFn.FITTING
        self._steps.set_up(self.applied)
        watches = self.ranks is not None and not task.automatic_optimization
        self._manual_backward = ManualBackward(task, self.name) if watches else None
        ranks = self.ranks if fits and self.data_parallel_size > 1 else None
        self.drift = None if ranks is None else Drift(task, self.name, ranks)
        for context in self._contexts(task):
            self._while_connected.enter_context(context)
        if fits:
            self._fit_begins(trainer)

    def _contexts(self, task: LightningModule) -> Iterator[AbstractContextManager[Any]]:
        """What is replaced and watched until the end of a fit or an evaluation."""
        if self.ranks is not None:
            yield own_gathers_checked(self._steps)
            if self.samples_group is not dist.group.WORLD:
                yield syncing_over(self.samples_group)
        if self.parallelisms:
            yield clipping_over_ranks(task, self.parts_group, self.counted)
        if is_exact(self._layer_sync, self.sizes):
            yield synchronized(self._steps, self.samples_group)
        if self._manual_backward is not None:
            yield self._manual_backward.watched()

    def _fit_begins(self, trainer: Trainer) -> None:
        # Lightning loads the states next. Only in a fit: a test may load a checkpoint, too.
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        for line in fit_to_length(loaded_checkpoint(trainer), schedulers, self.optimizers):
            if self.is_global_zero:
                say(line)
        reject_scaled_rows(self._connected_module, self.name, self.sizes)

    def model_to_device(self) -> None:
        """Reduce the task to this rank's part, unless that has been done, and move it."""
        task = self._connected_module
        self._while_connected.enter_context(variants_kept(task, self.compiled))
        # What users keep on parameters, such as a learning rate of their own.
        kept = {name: vars(parameter) for name, parameter in task.named_parameters()}
        if not (self.applied and is_laid_out(task)):
            self._distribute(task)
        if not self.parallelisms:
            super().model_to_device()  # type: ignore[safe-super]
            return
        self._move(task, self.root_device)
        for name, parameter in task.named_parameters():
            vars(parameter).update(kept[name])
        for axis in self.applied:
            self._while_connected.enter_context(axis.connected(task))

    def _distribute(self, task: LightningModule) -> None:
        reject_other_shards(task, self.name, self.sizes, has_applied=bool(self.applied))
        use_other_sync(self._layer_sync, task)
        restore(task, self.root_device)
        if self.ranks is not None and self.parallelisms:
            setting = Setting(self.name, self.ranks, self.precision_plugin)
            self.applied = lay_out(task, self.parallelisms, setting, self._compile)
        if not self.parallelisms:
            self._compile()

    def _setup_model(self, model: Any) -> Any:
        """Leave a task alone that parallelisms have distributed."""
        return model if self.parallelisms else super()._setup_model(model)

    def _compile(self, layers: Iterable[nn.Module] | None = None) -> None:
        """Apply activation checkpointing and torch.compile to these layers, or to all."""
        task, backend = self._connected_module, self.compile_backend
        recomputed, compiled = self.activation_checkpointing, self.compiled
        apply_ac_and_compile(task, recomputed, compiled, backend=backend, layers=layers)

    def _move(self, module: nn.Module, device: torch.device) -> None:
        move(module, device, lambda tensor: all(axis.moves(tensor) for axis in self.applied))

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Create the optimizers from this rank's parameters."""
        task = self._connected_module
        with optimizers_explained(task):
            super().setup_optimizers(trainer)
        if trainer.is_global_zero:
            report_no_optimizer(task, self.optimizers)
        if is_laid_out(task):
            reject_early_optimizers(task, self.optimizers, self.name)
        if self.ranks is not None:
            reject_unordered(task, self.optimizers, self.ranks)
        for axis in self.applied:
            axis.optimizers(self.optimizers)

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
        steps = self._steps
        self._loaders += 1
        training = bool(self._connected_module.trainer.training)
        return shared_loader(loader, steps.rank, steps.size, steps.stream, self._loaders, training)

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Move a batch; hooks that augment it draw this rank's own random numbers."""
        with self._steps.moving(dataloader_idx):
            return super().batch_to_device(batch, device, dataloader_idx)

    def on_validation_start(self) -> None:
        """Evaluate with the first rank's buffers, which are those that a checkpoint holds."""
        super().on_validation_start()
        self._steps.begin_evaluation()
        if self.parallelisms and self.ranks is not None:
            buffers = self._connected_module.buffers()
            self.ranks.copy_first(*(buffer for buffer in buffers if not buffer.is_meta))

    def on_test_start(self) -> None:
        super().on_test_start()
        self._steps.begin_evaluation()

    def on_predict_start(self) -> None:
        super().on_predict_start()
        self._steps.begin_evaluation()

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
        with self._explaining():
            return self._steps.train(*args)  # type: ignore[no-any-return]

    def validation_step(self, *args: Any) -> STEP_OUTPUT:
        with self._explaining():
            return run_step(self._steps, "validation_step", *args)  # type: ignore[no-any-return]

    def test_step(self, *args: Any) -> STEP_OUTPUT:
        with self._explaining():
            return run_step(self._steps, "test_step", *args)  # type: ignore[no-any-return]

    def predict_step(self, *args: Any) -> Any:
        with self._explaining():
            return self._steps.predict(*args)

    def _call_task(self, context: StepContext, *args: Any) -> Any:
        """Call a step of the task through Lightning, and reject what cannot train."""
        output = getattr(super(), context.name)(*args)
        if context.name == "training_step":
            self._outputs.check(self._connected_module, output, self.name)
        return output

    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Weight a loss by this rank's share, and run its backward pass."""
        task, loss = self._connected_module, self._steps.weighed(closure_loss)
        for axis in self.applied:
            loss = axis.backward(task, loss)
        if task.automatic_optimization:
            reject_without_gradient(task, loss)
        runs: AbstractContextManager[None] = nullcontext()
        if self._manual_backward is not None:
            runs = self._manual_backward.runs(kwargs.pop("inputs", None))
        with runs:
            return super().backward(loss, optimizer, *args, **kwargs)

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Give LBFGS, which decides by the loss, the same loss on all ranks."""
        if isinstance(optimizer, LBFGS):
            closure = partial(self._mean_loss, closure)
        output = super().optimizer_step(optimizer, closure, model, **kwargs)
        if self.drift is not None:
            self.drift.after_step(optimizer)
        return output

    def _mean_loss(self, closure: Callable[[], Any]) -> Any:
        loss = closure()
        return loss if loss is None else self.reduce(self._steps.weighed(loss))

    # The end

    def on_train_end(self) -> None:
        super().on_train_end()
        assert self.epochs is not None
        self._ended_with = self.epochs.state()
        self._state.check()

    def on_exception(self, exception: BaseException) -> None:
        """Explain PyTorch's errors in one line, also outside of a step."""
        super().on_exception(exception)
        if self.lightning_module is not None:
            exception.__cause__ = self._explain(exception) or exception.__cause__

    def _explain(self, error: BaseException) -> BaseException | None:
        if isinstance(error, UserError):
            return None
        task = self._connected_module
        lines = (axis.explained(error, task) for axis in self.applied)
        context = self._steps.current if self.data_parallel_size > 1 else None
        line = explain_error(error, task, self.name, context.batch.loaders if context else ())
        return line or next(filter(None, lines), None)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Explain what ranks cannot do as one process does, in a step."""
        try:
            yield
        except Exception as error:
            if self.ranks is not None and (line := self._explain(error)):
                raise line from error
            raise

    def teardown(self) -> None:
        """Restore the task and Lightning's loops after a fit or an evaluation."""
        self._while_connected.close()
        if self.epochs is not None:
            self.epochs.end()
            self.epochs = None
        if self.steps is not None:
            self.steps.end()
        if self.parallelisms:
            self._teardown_parts()
        else:
            super().teardown()

    def _teardown_parts(self) -> None:
        """Instead of Lightning's teardown, which would move parameters on the meta device."""
        move_optimizers(self.optimizers, torch.device("cpu"))
        # After an exception its traceback may hold parameters that then cannot be moved. Ignore
        # that, so that the first error is the one that is shown.
        with nullcontext() if sys.exc_info()[0] is None else suppress(RuntimeError, AttributeError):
            self._move(self._connected_module, torch.device("cpu"))
        self.precision_plugin.teardown()
        cast(Any, self.accelerator).teardown()
        self.checkpoint_io.teardown()
