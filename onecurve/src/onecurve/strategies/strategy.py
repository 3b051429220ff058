"""A Lightning strategy under which a task trains as in one process, on whatever axes its ranks lie.

`OneCurve` puts together who does what: a mesh of ranks (`mesh/ranks.py`), the step of the task that
is under way (`step.py`), one object for each axis (`parallelism.py`), loaders that share out global
batches (`batch/`) and files (`checkpoint/`). The strategies that a user names are presets of it.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import LayerSync
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import STEP_OUTPUT
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torchmetrics import Metric

from ..batch.loader import shared_loader
from ..batch.random import Draws, RankStream, get_state, kept_state, set_state
from ..batch.resume import TrainingEpochs
from ..checkpoint.resume_changes import fit_to_length
from ..checkpoint.storage import LocalFiles
from ..compat.of_lightning import (
    loaded_checkpoint,
    move_optimizers,
    shares_no_samples,
)
from ..compat.of_torch import never_captured
from ..errors import UserError, say
from ..optim.fused import keep_kernels, leave_unscaling, make_contiguous
from ..torch_versions import require
from .clip import clipping_over_ranks
from .explained import explained
from .for_callbacks import ForCallbacks
from .layers_made import Compiled, Recomputed, make_layers
from .layout import lay_out, move
from .manual_backward import manual_backward, pytorchs_backward
from .mesh.ranks import Ranks
from .parallelism import Parallelism
from .step import DataParallel, TaskStep

Backend = Literal["auto", "gloo", "nccl"]


class OneCurve(ForCallbacks):
    """Stands before one of Lightning's own strategies, which knows devices and process groups.

    Args:
        axes: By axis how many ranks, of which one may be "auto": what the others leave. None for
            one process.
        parallelisms: What is done along the axes, from the outermost to the innermost.
        activation_checkpointing: What a backward pass computes again: see `layers_made`.
        backend: What carries what ranks send: "gloo", "nccl", or "auto" for what PyTorch takes for
            the device: nccl for GPUs, gloo for CPUs.
            https://docs.pytorch.org/docs/stable/distributed.html#backends
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
        lightnings: What Lightning's strategy takes.

    Attributes:
        name: What ``strategy=...`` calls it.
        report_dir: Where to leave pictures of what the strategy does; None for nowhere.
        prints_layers: Whether to print how layers are divided among ranks. To be set before a fit.
        compiled: What torch.compile makes code of: see `layers_made`. To be set before a fit.
        count_labels: Whether a loss that is known to be a mean over labels counts by them among
            ranks: see `weight`. To be set before a fit.
        compile_backend: torch.compile's; "aot_eager" traces and makes no code.
    """

    name: str = ""
    report_dir: Path | None = None
    prints_layers: bool = True
    compiled: Compiled = "none"
    compile_backend: str = "inductor"
    count_labels: bool = True
    global_rank: int
    world_size: int
    _layer_sync: LayerSync | None
    _loaders: int = 0

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
        # What is in the way of calls for the length of a fit or an evaluation.
        self._while_connected = ExitStack()

    # Set-up, in the order of Lightning's calls

    def connect(self, model: LightningModule) -> None:
        """Take the task, in the precision of the run.

        Lightning's own converts it later: after a checkpoint's float64 was copied into float32, and
        after callbacks were set up.
        """
        super().connect(model)
        self.precision_plugin.convert_module(model)

    def setup_environment(self) -> None:
        """Join the other ranks, if there are any."""
        with kept_state():  # Lightning seeds the generators again where ranks meet
            super().setup_environment()
        task = self._connected_module
        # Lightning's would share the samples out before `process_dataloader` does, and repeats
        # some of them; so nobody has to say Trainer(use_distributed_sampler=False).
        shares_no_samples(task.trainer)
        if self.step is None:
            self.step = self._first_step()
        stream = self.step.stream
        self._synchronize()
        stream.reseed()
        if task.trainer.state.fn == TrainerFn.FITTING:
            self.epochs = TrainingEpochs(task.trainer, stream, self._synchronize)
        self.step.begin(task, self.name, self.epochs)
        self.step.counts_labels = self.count_labels
        if self.ranks is not None:
            for parallelism in self.parallelisms:
                parallelism.join(self.name, self.ranks, self.step, self.precision_plugin)

    def _first_step(self) -> TaskStep:
        """Find this rank's place among the others, once they have met."""
        place, stream = DataParallel(device=self.root_device), RankStream(0, apart=())
        if self._axes is not None:
            self.ranks = ranks = self._laid_out(self._axes)
            sizes, rank = ranks.sizes, ranks.data_parallel_rank
            self.parallelisms = [each for each in self.parallelisms if each.is_needed(sizes)]
            self.samples_group = ranks.samples_group
            self.parts_group = ranks.pipeline_group if sizes.pipeline > 1 else None
            place = DataParallel(
                rank, sizes.data_parallel, ranks.samples_group, ranks.device, is_alone=False
            )
            if ranks.draw_apart:
                apart = tuple(Draws) if sizes.data_parallel > 1 else (Draws.STEP,)
                stream = RankStream(rank, apart)
        return TaskStep(place, stream, self._call_task, self.precision_plugin.forward_context)

    def _laid_out(self, axes: Mapping[str, int | Literal["auto"]]) -> Ranks:
        timeout: timedelta | None = getattr(self, "_timeout", None)
        try:
            return Ranks(axes, self.global_rank, self.world_size, self.root_device, timeout)
        except ValueError as error:
            raise UserError(
                f"strategy={self.name}: {error}, and there are {self.world_size}; let the product "
                "of all axes be the number of ranks"
            ) from None

    def _get_process_group_backend(self) -> str:
        backend: str = super()._get_process_group_backend()  # type: ignore[misc]
        # Shards that lie on the CPU are also clipped and gathered there.
        offloads = any(each.offloads for each in self.parallelisms)
        return "cpu:gloo,cuda:nccl" if offloads and backend == "nccl" else backend

    def _synchronize(self) -> None:
        """Draw on as the first rank does."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            set_state(self.broadcast(get_state()))

    def setup(self, trainer: Trainer) -> None:
        """Lay the task out on the ranks, and make ready for its steps."""
        Strategy.setup(self, trainer)
        task = self._connected_module
        if trainer.state.fn == TrainerFn.FITTING:
            # Lightning loads the states next; not for a test, which comes by a checkpoint, too.
            schedulers = [config.scheduler for config in self.lr_scheduler_configs]
            for line in fit_to_length(loaded_checkpoint(trainer), schedulers, self.optimizers):
                if self.is_global_zero:
                    say(line)
        scaler = getattr(self.precision_plugin, "scaler", None)
        for optimizer in self.optimizers:
            keep_kernels(optimizer)
            leave_unscaling(optimizer, is_scaled=scaler is not None)
            if self.root_device.type == "cpu":
                never_captured(optimizer)
        self._step.patch()
        for parallelism in self.parallelisms:
            parallelism.begin(task)
        if self.ranks is not None:
            self._count_over_ranks(task)

    def _count_over_ranks(self, task: LightningModule) -> None:
        """Make metrics and clipping those of all ranks."""
        everyone = self.samples_group is dist.group.WORLD
        for metric in task.modules():
            if isinstance(metric, Metric) and metric.process_group is None and not everyone:
                metric.process_group = self.samples_group
        if self.parallelisms:
            clipping = clipping_over_ranks(task, self.parts_group, self.counted)
            self._while_connected.enter_context(clipping)

    def model_to_device(self) -> None:
        """Keep this rank's part of the task, unless an earlier fit or test did, and move it."""
        task = self._connected_module
        if self.ranks is None or not self.parallelisms:
            self.make_layers()
            super().model_to_device()  # type: ignore[safe-super]
            return
        if not any(each.is_applied(task) for each in self.parallelisms):
            if self._layer_sync is not None and task.trainer.state.fn == TrainerFn.FITTING:
                self._layer_sync.apply(task)
                # Or Lightning would try to turn back what is sharded by then.
                self._layer_sync = None
            lay_out(task, self.ranks, self.parallelisms, self.make_layers)
        self._move(task, self.root_device)
        for parallelism in self.parallelisms:
            self._while_connected.enter_context(parallelism.connected(task))

    def _setup_model(self, model: Any) -> Any:
        """Nothing wraps a task that is laid out already."""
        return model if self.parallelisms else super()._setup_model(model)

    def make_layers(self, layers: Iterable[nn.Module] | None = None) -> None:
        """Let layers compute again and compile them, as asked: see `layers_made`.

        Before they are sharded, or wrapped.

        Args:
            layers: Those of this rank; by default the whole task's.
        """
        # Not where logits may be sharded; those put together from pieces of a sequence are full.
        sizes = self.sizes
        if sizes.context > 1 and self.compiled != "none":
            require("strategy.context with compile")
        make_layers(
            self._connected_module,
            self.activation_checkpointing,
            self.compiled,
            backend=self.compile_backend,
            layers=layers,
            loss=sizes.tensor == 1 or sizes.context > 1,
        )

    def _move(self, module: nn.Module, device: torch.device) -> None:
        move(module, device, lambda tensor: all(each.moves(tensor) for each in self.parallelisms))

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Have the optimizers made, of this rank's parameters."""
        super().setup_optimizers(trainer)
        for parallelism in self.parallelisms:
            parallelism.set_up_optimizers(trainer, self.optimizers)

    # Batches

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
        place, stream = self._step.place, self._step.stream
        self._loaders += 1
        training = bool(self._connected_module.trainer.training)
        return shared_loader(loader, place.rank, place.size, stream, self._loaders, training)

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Move a batch; what augments it draws for this rank's samples."""
        if self.ranks is None:
            return super().batch_to_device(batch, device, dataloader_idx)
        if not self._connected_module.trainer.training:
            self._step.moves(dataloader_idx)
        with self._step.own(Draws.BATCH):
            return super().batch_to_device(batch, device, dataloader_idx)

    def on_validation_start(self) -> None:
        """Evaluate the first rank's buffers, which are what a checkpoint holds."""
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

    def training_step(self, *args: Any) -> STEP_OUTPUT:
        """Run the task's own step and weigh its loss by this rank's share of the global batch."""
        if isinstance(self.checkpoint_io, LocalFiles):
            # Hear of a file that could not be written in the background.
            self.checkpoint_io.poll()
        accumulates = self._connected_module.trainer.accumulate_grad_batches > 1
        return self._step.train_accumulated(*args) if accumulates else self._step.train(*args)

    def validation_step(self, *args: Any) -> STEP_OUTPUT:
        return self._step.evaluate("validation_step", *args)

    def test_step(self, *args: Any) -> STEP_OUTPUT:
        return self._step.evaluate("test_step", *args)

    def predict_step(self, *args: Any) -> Any:
        return self._step.predict(*args)

    def _call_task(self, name: str, *args: Any) -> Any:
        """Have Lightning call a step of the task, within every parallelism."""
        step: Callable[[], Any] = partial(getattr(super(), name), *args)
        for parallelism in reversed(self.parallelisms):
            step = partial(parallelism.run, name, args[0], step)
        if self.ranks is None:
            return step()
        try:
            if name != "training_step" or self._connected_module.automatic_optimization:
                return step()
            with manual_backward(self, self._weighed):
                return step()
        except Exception as error:
            if line := self._explained(error):
                raise line from error
            raise

    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Run the backward pass of a loss that is weighed first."""
        task, loss = self._connected_module, self._weighed(closure_loss)
        if self.ranks is None or task.automatic_optimization:
            return super().backward(loss, optimizer, *args, **kwargs)
        with pytorchs_backward(task, kwargs.pop("inputs", None)):
            return super().backward(loss, optimizer, *args, **kwargs)

    def _weighed(self, loss: Tensor) -> Tensor:
        for parallelism in self.parallelisms:
            loss = parallelism.before_backward(self._connected_module, loss)
        return loss if self._step.weight == 1.0 else loss * self._step.weight

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Lightning enters this for a batch that is only accumulated."""
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
        """Let an optimizer that decides by the loss decide alike on all ranks."""

        def backward() -> Any:
            result = closure()
            if isinstance(optimizer, LBFGS):
                return self.reduce(result)
            make_contiguous(optimizer)
            return result

        return super().optimizer_step(optimizer, backward, model, **kwargs)

    # The end

    def on_train_end(self) -> None:
        super().on_train_end()
        for parallelism in self.parallelisms:
            parallelism.check()

    def on_exception(self, exception: BaseException) -> None:
        """Say in one line what PyTorch says, also where it says it outside of a step."""
        super().on_exception(exception)
        if self.lightning_module is not None:
            exception.__cause__ = self._explained(exception) or exception.__cause__

    def _explained(self, error: BaseException) -> BaseException | None:
        """What an error of PyTorch means in a task, in one line; None for any other."""
        if isinstance(error, UserError):
            return None
        task = self._connected_module
        lines = (each.explained(error, task) for each in self.parallelisms)
        return explained(error, task, self.name) or next(filter(None, lines), None)

    def teardown(self) -> None:
        """A fit or an evaluation is over: leave the task and Lightning's loops as they were."""
        self._while_connected.close()
        if self.epochs is not None:
            self.epochs.end()
            self.epochs = None
        if self.step is not None:
            self.step.end()
        if not self.parallelisms:
            super().teardown()
            return
        # Lightning's own would move parameters that have no memory.
        move_optimizers(self.optimizers, torch.device("cpu"))
        # What failed may hold parameters, which cannot be moved then; its error is the one to read.
        with nullcontext() if sys.exc_info()[0] is None else suppress(RuntimeError, AttributeError):
            self._move(self._connected_module, torch.device("cpu"))
        self.precision_plugin.teardown()
        cast(Any, self.accelerator).teardown()
        self.checkpoint_io.teardown()
