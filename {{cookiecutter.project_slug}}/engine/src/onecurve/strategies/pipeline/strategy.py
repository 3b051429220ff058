"""`strategy=pipeline`: consecutive layers on each rank; micro-batches pass through them.

PyTorch's own schedules do the work (`torch.distributed.pipelining`). The task's steps run on every
rank: where they call `forward`, the pipeline runs instead and every rank gets the last stage's
outputs; so loss, metrics and logs are those of the whole batch, everywhere.

Exact: the loss curve of `single`, to float tolerance, for every schedule, batch size, number of
micro-batches and of replicas, with accumulation, clipping and frozen layers. Not exact: BatchNorm
(statistics of each micro-batch) and other buffers that a forward pass changes, which are announced;
dropout (each stage draws its own masks).
Refuses: what breaks the rules in `checks.py`, in any batch; what needs the gradients of all ranks.
Memory per rank: its own layers' parameters, gradients and optimizer state, and the activations of
the micro-batches under way.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal, cast

import torch
import torch.distributed as dist
from lightning.fabric.utilities.device_dtype_mixin import _update_properties
from lightning.fabric.utilities.optimizer import _optimizers_to_device
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.distributed import ProcessGroup as Group

from ...errors import UserError
from ...limits import Number
from ..process_group import Seconds
from ..redirect import forward_replaced
from ..trial import report_changed
from ..weight import weight_of
from .checks import check_structure, network_inputs
from .composition import check_composition
from .elsewhere import watch_hooks
from .gradients import agree_on_overflow, average
from .layers_per_rank import LayersPerRank
from .limits import SCHEDULES, Schedule
from .loss_check import LossCheck, no_other_parameters
from .optimizers import check_optimizers
from .partition import Partition
from .partition_table import report_partition
from .passes import Passes
from .placement import Placement, move, stage_tensors
from .shapes import LayerShapes


class Pipeline(LayersPerRank):
    """Pipeline parallelism for an ordinary LightningModule.

    Args:
        schedule: A key of `limits.SCHEDULES`.
        microbatches: Micro-batches a batch. Where they do not divide a batch, the nearest number
            that does is taken for that batch.
        stages_per_rank: Stages a rank holds; "auto" takes what the schedule is made for.
        balance: "auto" for the partition with the smallest largest cost, or the number of layers of
            each stage.
        replicas: Pipelines side by side, which share the batch. Neighbouring ranks form a pipeline.
        check_loss: Say so, if the first loss of several replicas is no mean: see `mean_loss`. Those
            of micro-batches are always compared.
        timeout_seconds: How long a rank waits for another before it fails.

    Raises:
        UserError: If there is no such schedule.
    """

    def __init__(
        self,
        schedule: Schedule = "1f1b",
        microbatches: Annotated[int, Number(least=1)] = 4,
        stages_per_rank: Annotated[int, Number(least=1)] | Literal["auto"] = "auto",
        balance: Sequence[int] | str = "auto",
        replicas: Annotated[int, Number(least=1)] = 1,
        check_loss: bool = True,
        timeout_seconds: Seconds = 1800,
    ) -> None:
        if schedule not in SCHEDULES:
            raise UserError(
                f"strategy.schedule={schedule}: must be one of {', '.join(SCHEDULES)}; "
                "such as strategy.schedule=1f1b"
            )
        super().__init__(timeout_seconds)
        self.check_loss = check_loss
        self.schedule = schedule
        self.microbatches = microbatches
        self.stages_per_rank = (
            SCHEDULES[schedule].stages_per_rank
            if stages_per_rank == "auto"
            else int(stages_per_rank)
        )
        self.balance = balance
        self.replicas = replicas
        self._accumulating = False

    # This rank's part of the network

    def model_to_device(self) -> None:
        """Partition the network, keep this rank's layers and put them on the device."""
        module = self._connected_module
        if self.placement is None:
            self._partition(module.trainer)
        move(module, self.root_device)
        _update_properties(module, device=self.root_device)
        module.forward = self._forward  # type: ignore[method-assign]
        if self.replicas > 1:
            # Start from the same weights, as DistributedDataParallel does.
            for tensor in stage_tensors(self.passes.stages):
                dist.broadcast(tensor.detach(), group=self.samples_group, group_src=0)

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Build the optimizers, and refuse what needs the gradients of all ranks."""
        super().setup_optimizers(trainer)
        if self.num_ranks > 1:
            check_optimizers(self.optimizers)
            watch_hooks(trainer)

    def _partition(self, trainer: Trainer) -> None:
        module = self._connected_module
        layers = check_structure(module)
        inputs = network_inputs(trainer)
        changed = check_composition(module, layers, inputs)
        context = self.precision_plugin.forward_context
        shapes = LayerShapes(layers, context)
        partition = Partition.of(
            # Replicas whose shares differ by a sample must cut at the same layers.
            self.broadcast(shapes.costs(inputs)),
            num_ranks=self.num_ranks,
            stages_per_rank=self.stages_per_rank,
            v_shaped=self.schedule == "zbv",
            balance=self.balance,
        )
        self.placement = Placement(module, layers, partition, self.pipeline_rank)
        self.passes = Passes(
            module,
            self.placement,
            shapes,
            schedule=self.schedule,
            microbatches=self.microbatches,
            context=context,
            group=cast(Group, self.parts_group),
            device=self.root_device,
            weigh=partial(weight_of, module),
            deposited=self._average_gradients,
        )
        mixed = isinstance(self.precision_plugin, MixedPrecision)
        on_cpu = self.root_device.type == "cpu"
        self.loss_check = LossCheck(module, mixed=mixed, at_once=on_cpu)
        if trainer.state.fn == TrainerFn.FITTING and self.is_global_zero:
            report_changed("pipeline", "micro-batch", changed)
            report_partition(
                trainer, self.placement, *self.passes.schedules.get(inputs), len(inputs[0])
            )

    # Steps

    def task_step(self, name: str, *args: Any) -> Any:
        """Run a step of the task; its call of `forward` goes through the pipeline.

        Raises:
            UserError: If a training step calls `forward` not exactly once, or computes another
                loss than ``loss(outputs, targets)``.
        """
        module = self._connected_module
        fit = name == "training_step"
        targets = self._targets() if fit else None
        # Read once: on a GPU it has to be waited for.
        scale = self._loss_scale if fit else 1.0
        calls: list[Tensor] = []

        def forward(*inputs: Tensor) -> Any:
            if calls:
                raise UserError(
                    f"strategy=pipeline: {name} calls forward more than once; call it once with "
                    "the whole batch, or use strategy=fsdp"
                )
            outputs, losses = self.passes.train(inputs, targets, scale)
            calls.append(losses)
            return outputs[0] if len(outputs) == 1 else outputs

        if not fit:
            with no_other_parameters(module):
                return super().task_step(name, *args)
        with forward_replaced(module, forward), no_other_parameters(module):
            result = super().task_step(name, *args)
        loss = result["loss"] if isinstance(result, dict) else result
        if not calls or not isinstance(loss, Tensor):
            raise UserError(
                "strategy=pipeline: training_step must call self(inputs) and return the loss; "
                "change it, or use strategy=fsdp"
            )
        self.loss_check.compare(loss, calls[0])
        attached = self.passes.stash.attach(loss, scale)
        return {**result, "loss": attached} if isinstance(result, dict) else attached

    def _targets(self) -> Any:
        if self._prepared is None:
            raise UserError(
                "strategy=pipeline: a batch must be (inputs, targets), so that loss(outputs, "
                "targets) can be computed micro-batch by micro-batch; add a method prepare(batch) "
                "to the task that returns such a pair, or use strategy=fsdp"
            )
        return self._prepared.targets

    @torch.no_grad()
    def _forward(self, *inputs: Tensor) -> Any:
        """What the task's `forward` does outside of training: any number of times, on all ranks."""
        outputs = self.passes.run(inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """As `LayersPerRank` collects it; nothing is saved that was trained on another loss."""
        if self.placement is not None:
            self.loss_check.read()
        return super().lightning_module_state_dict()

    def on_train_end(self) -> None:
        """The last steps have been checked, too."""
        self.loss_check.read()
        super().on_train_end()

    def whole_forward(self, inputs: Any) -> None:
        """Without micro-batches."""
        self.passes.run((inputs,), chunks=1)

    @property
    def _loss_scale(self) -> float:
        """What 16-bit training multiplies the loss by: the schedule must do so, too."""
        scaler = self._scaler
        return float(scaler.get_scale()) if scaler is not None else 1.0

    @property
    def _scaler(self) -> torch.amp.GradScaler | None:
        precision = self.precision_plugin
        return precision.scaler if isinstance(precision, MixedPrecision) else None

    # Gradients across replicas

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Lightning enters this for a batch that is only accumulated."""
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    def _average_gradients(self) -> None:
        """Average over the replicas, once for all accumulated batches.

        Within the backward pass, as DistributedDataParallel does: `on_after_backward` follows.
        """
        if self._accumulating:
            return
        gradients = [p.grad for p in self.passes.stash.parameters if p.grad is not None]
        if self.replicas > 1:
            average(gradients, cast(Group, self.samples_group))
        if self._scaler is not None:
            agree_on_overflow(gradients, cast(Group, self.parts_group), self.root_device)

    def teardown(self) -> None:
        """Release the device; Lightning's own would move parameters that have no memory."""
        _optimizers_to_device(self.optimizers, torch.device("cpu"))
        move(self._connected_module, torch.device("cpu"))
        vars(self._connected_module).pop("forward", None)
        self.precision_plugin.teardown()
        cast(Any, self.accelerator).teardown()
        self.checkpoint_io.teardown()
