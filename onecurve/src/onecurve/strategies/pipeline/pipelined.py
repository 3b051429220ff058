"""Consecutive layers on each rank; micro-batches pass through them.

The task's steps run on every rank: where they call the network, the pipeline runs instead and every
rank gets the last stage's outputs; so loss, metrics and logs are those of the whole batch,
everywhere. What is not in the layers (`network.py`) stays whole on every rank, and is computed
there. PyTorch's own schedules do the work where they can be told the loss (`steps.py`).

Exact: the loss curve of `single`, to float tolerance, for every schedule, batch size, number of
micro-batches and of replicas, with accumulation, clipping and frozen layers, several calls of the
network and several optimizers. Not exact: BatchNorm (statistics of each micro-batch), dropout (each
stage draws its own masks).
Refuses: what needs the parameters or the gradients of all ranks at once.
Where ranks share the parameters of a stage, FSDP2 averages its gradients after the last
micro-batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import signature
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from lightning.fabric.utilities.optimizer import _optimizers_to_device
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.distributed import ProcessGroup as Group
from torch.optim import Optimizer

from ...checkpoint.stored import model_state_here, optimizer_states_here
from ...errors import UserError
from ..accumulation import rows
from ..changed_buffers import report_changed
from ..example import example_of
from ..fsdp.state import cut_like
from ..fsdp.units import check_wrap
from ..mesh.cutting import Cutting
from ..mesh.sharded import Sharded
from ..redirect import replaced
from ..sequences import WholeSequences
from ..weight import weight_of
from . import state
from .elsewhere import shown, watch_hooks
from .gradients import agree_on_overflow, average, ending_with
from .limits import SCHEDULES, Schedule
from .loss_check import LossCheck, no_other_parameters
from .network import Network, find_network
from .optimizers import forget_elsewhere, refuse_whole
from .partition import Partition
from .partition_table import report_partition
from .passes import Passes
from .placement import Placement, stage_tensors
from .shapes import LayerShapes
from .steps import NO_TARGETS, Steps


class Pipelined(Sharded):
    """Pipelines side by side: every rank with layers of its own, or its shard of their parameters.

    Args:
        given: What `Sharded` takes.
        schedule: A key of `limits.SCHEDULES`.
        microbatches: How many a batch.
        stages_per_rank: Stages a rank holds; "auto" takes what the schedule is made for.
        balance: "auto", or the number of layers of each stage.

    Attributes:
        placement: Which rank of a pipeline holds what; None until the network is partitioned.

    Raises:
        UserError: If there is no such schedule.
    """

    placement: Placement | None = None
    network: Network
    passes: Passes
    steps: Steps
    _accumulates: bool = False
    _is_reported: bool = False
    _rows_of_batch: int | None = None
    # Parameters that are in no layer.
    _beside: Sequence[Tensor] = ()

    def __init__(
        self,
        *given: Any,
        schedule: Schedule,
        microbatches: int,
        stages_per_rank: int | Literal["auto"],
        balance: Sequence[int] | str,
    ) -> None:
        if schedule not in SCHEDULES:
            raise UserError(
                f"strategy.schedule={schedule}: must be one of {', '.join(SCHEDULES)}; "
                "such as strategy.schedule=1f1b"
            )
        super().__init__(*given)
        self.schedule = schedule
        self.microbatches = microbatches
        self.stages_per_rank = (
            SCHEDULES[schedule].stages_per_rank
            if stages_per_rank == "auto"
            else int(stages_per_rank)
        )
        self.balance = balance
        # What is in the way of calls for the length of a fit or an evaluation.
        self._patches = ExitStack()

    @property
    def cuts_parameters(self) -> bool:
        """Whether ranks share the parameters of a stage; else each has them whole."""
        return self.sizes.shard * self.sizes.context * self.sizes.tensor > 1

    # Set-up

    def lay_out(self) -> None:
        """Make the groups of a pipeline, too."""
        super().lay_out()
        if self.parts_group is None:
            self.parts_group = self.group_of("pipeline")
            # For checkpoints, which travel through the CPU.
            self._cpu_group = self.group_of("pipeline", backend="gloo")

    def model_to_device(self) -> None:
        """Partition the network, keep this rank's layers, and let calls go through all of them."""
        module = self._connected_module
        if self.placement is None:
            self._partition(module.trainer)
        self._move(module, self.root_device)
        self._patches.enter_context(replaced(self.network.owner, "forward", self._network_forward))

    def _partition(self, trainer: Trainer) -> None:
        module, context = self._connected_module, self.precision_plugin.forward_context
        check_wrap(module, self.sharding.wrap)
        self.network = find_network(module, self.sizes.pipeline * self.stages_per_rank)
        self._takes = signature(self.network.owner.forward)
        shapes = LayerShapes(self.network.layers, context)
        partition = Partition.of(
            # All ranks must cut at the same layers.
            self.broadcast(shapes.costs(example_of(trainer))),
            num_ranks=self.sizes.pipeline,
            stages_per_rank=self.stages_per_rank,
            v_shaped=self.schedule == "zbv",
            balance=self.balance,
        )
        layers = self.network.layers
        self.placement = Placement(module, layers, partition, self.coordinates.pipeline)
        plans: list[dict[str, str]] = []
        if self.sizes.tensor > 1:
            held = [self.placement.layers_of(stage) for stage in range(self.placement.num_stages)]
            plans = self._cutting.check(module, held, self.is_global_zero)
        self.passes = Passes(
            module,
            self.network.name,
            self.placement,
            self._take_part(self.placement, plans),
            shapes,
            schedule=self.schedule,
            microbatches=self.microbatches,
            context=context,
            group=cast(Group, self.parts_group),
            device=self.root_device,
            sequences=self._sequences(),
            # Ranks that share a layer draw alike.
            drawing_rank=self.global_rank - self.coordinates.tensor,
            weigh=partial(weight_of, module),
            rows=self._rows_here,
            is_sharded=self.cuts_parameters,
        )

    def _sequences(self) -> WholeSequences:
        if self.context_group is None:
            return WholeSequences()
        from ..context.sequence import Pieces

        return Pieces(self.context_group)

    @property
    def _cutting(self) -> Cutting:
        return Cutting(self.sizes, self.plan, self.sequence, self.mesh["tensor"])

    def _take_part(
        self, placement: Placement, plans: Sequence[dict[str, str]]
    ) -> dict[int, nn.Module]:
        """Keep this rank's layers, of them what the plan of their stage leaves, and its shards."""
        module = self._connected_module
        stages = placement.take_part(self.precision_plugin.forward_context)
        # Start ranks from the same weights, as DistributedDataParallel does.
        self._copy_first_rank(*stage_tensors(stages))
        self._beside = self._beside_layers(module.named_parameters)
        buffers = self._beside_layers(module.named_buffers)
        self._copy_first_rank(*self._beside, *buffers, group=dist.group.WORLD)
        if plans:
            self._move(module, self.root_device)
            for index in stages:
                self._cutting.cut(module, plans[index])
        parts = [stage.get_submodule("layers") for stage in stages.values()]
        self.make_layers(layer for part in parts for layer in part.children())
        if self.cuts_parameters:
            for stage in stages.values():
                self._shard(stage)
        return stages

    def _beside_layers(self, named: Callable[[], Iterator[tuple[str, Tensor]]]) -> list[Tensor]:
        """Parameters or buffers that are in no layer, which every rank has whole."""
        return [tensor for name, tensor in named() if not self._placed.is_placed(name)]

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Build the optimizers, and see who looks at gradients."""
        super().setup_optimizers(trainer)
        if self.sizes.pipeline > 1:
            refuse_whole(self.optimizers)
            forget_elsewhere(self.optimizers)
            watch_hooks(trainer, self._patches)

    def prepare(self) -> None:
        """A fit begins, whose first step shows what its loss is."""
        super().prepare()
        mixed = isinstance(self.precision_plugin, MixedPrecision)
        module, on_cpu = self._connected_module, self.root_device.type == "cpu"
        self.loss_check = LossCheck(module, mixed=mixed, at_once=on_cpu)
        self.steps = Steps(module, self.passes, self.loss_check, self.reduce_boolean_decision)

    # Steps

    def _network_forward(self, *args: Any, **kwargs: Any) -> Any:
        """What a call of the network does, any number of times, on all ranks."""
        inputs = self._takes.bind(*args, **kwargs).args if kwargs else args
        if len(inputs) == 1 and isinstance(inputs[0], tuple):
            (inputs,) = inputs  # an nn.Sequential takes several as one
        if not inputs or not all(isinstance(value, Tensor) for value in inputs):
            raise UserError(
                "strategy=pipeline: the layers must be called with tensors, and got "
                f"{', '.join(type(value).__name__ for value in inputs) or 'nothing'}; take them "
                "out of what holds them before, or use strategy=fsdp"
            )
        outputs = self.steps.forward(inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def task_step(self, name: str, *args: Any) -> Any:
        """Run a step of the task, in which calls of the network go through the pipeline."""
        step = partial(super().task_step, name, *args)
        self._rows_of_batch = rows(args[0])
        with no_other_parameters(self._connected_module, self.network.name):
            if name != "training_step":
                return step()
            targets = NO_TARGETS if self._prepared is None else self._prepared.targets
            # What 16-bit training multiplies the loss by, a schedule must, too.
            scale = 1.0 if self._scaler is None else float(self._scaler.get_scale())
            result = self.steps.run(step, targets, scale, self._weight)
        if not self._is_reported and self.steps.inputs:
            inputs, self.steps.inputs = self.steps.inputs, ()
            self._is_reported = True
            self._report(inputs)
        return result

    def _report(self, inputs: tuple[Tensor, ...]) -> None:
        """Say once how the network is cut, when it is known how steps run."""
        of_parts = self.of_all_parts(self.passes.changed_buffers())
        if self.is_global_zero:
            name, order, count = self.steps.plan(inputs)
            trainer = self._connected_module.trainer
            report_partition(trainer, self._placed, name, order, count, len(inputs[0]))
            if count > 1:
                names = [name for part in of_parts for name in part]
                report_changed("pipeline", "micro-batch", names)

    def _rows_here(self) -> int | None:
        """This rank's samples of the batch under way, where its loader or its tensors say so."""
        trains = self._connected_module.trainer.training
        share = self._share if trains else self._evaluated[2]
        if share is None:
            return self._rows_of_batch
        return None if share.is_of_several else max(1, share.size)

    def weighed(self, loss: Tensor, weight: float) -> Tensor:
        """Gradients of a schedule are weighed within: FSDP2 averages them there."""
        return loss + loss.detach() * (weight - 1) if self.steps.is_told else loss * weight

    def all_samples(self, tensor: Tensor) -> Tensor:
        """See `ForCallbacks`; not for single micro-batches."""
        if self.passes.takes_loss:
            raise UserError("all_samples is of whole batches, and not of micro-batches")
        return super().all_samples(tensor)

    def whole_forward(self, inputs: Any) -> None:
        """Without micro-batches."""
        self.passes.forward((inputs,), chunks=1)

    @property
    def _scaler(self) -> torch.amp.GradScaler | None:
        precision = self.precision_plugin
        return precision.scaler if isinstance(precision, MixedPrecision) else None

    # Gradients

    def backward(self, closure_loss: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Have gradients averaged before a hook sees them, as DistributedDataParallel does."""
        whole = ending_with(closure_loss, self.average_gradients)
        return super().backward(whole, *args, **kwargs)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Lightning enters this for a batch that is only accumulated."""
        self._accumulates = True
        try:
            yield
        finally:
            self._accumulates = False

    def average_gradients(self) -> None:
        """Average over the replicas, once for all accumulated batches."""
        if self._accumulates:
            return
        if self.data_parallel_size > 1:
            # FSDP2 has averaged those of stages that it shards.
            whole = [*([] if self.cuts_parameters else self.passes.parameters), *self._beside]
            gradients = [p.grad for p in whole if p.grad is not None]
            average(gradients, cast(Group, self.samples_group))
        if self._scaler is not None:
            held = [p.grad for p in self._connected_module.parameters() if p.grad is not None]
            agree_on_overflow(held, self.root_device)

    def counted(self, parameters: Any) -> list[Tensor]:
        """What every rank has counts on the first of a pipeline."""
        if self.coordinates.pipeline == 0:
            return list(parameters)
        beside = set(map(id, self._beside))
        return [parameter for parameter in parameters if id(parameter) not in beside]

    def gradient_norm(self, optimizer: Optimizer | None = None) -> Tensor:
        """Each rank adds what it has."""
        with shown(False):
            return super().gradient_norm(optimizer)

    # Checkpoints

    @property
    def _placed(self) -> Placement:
        assert self.placement is not None
        return self.placement

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """On rank 0 the whole network's state under the original names; elsewhere nothing.

        For a sharded checkpoint what this rank holds. Nothing is saved that was trained on another
        loss than it logged.
        """
        module = self._connected_module
        self.loss_check.read()
        if self.keeps_shards:
            return state.model_part(module, self._placed)
        group, keeps = self._cpu_group, self.is_first_of_stage
        return state.whole_model_state(module, self._placed, group, keeps)

    def load_model_state_dict(self, checkpoint: Any, strict: bool = True) -> None:
        """Load a whole network's state; once the network is partitioned, this rank's part of it."""
        if self.placement is None:
            super().load_model_state_dict(checkpoint, strict)
            return
        module = self._connected_module
        own = module.state_dict()
        whole = model_state_here(checkpoint["state_dict"], own)
        cut = {name: cut_like(value, own.get(name)) for name, value in whole.items()}
        state.load_model_part(module, cut, self.placement, strict)

    def each_whole(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Brought to rank 0 by the ranks that hold them."""
        for name, _ in self._connected_module.named_parameters():
            here = {name: tensors[name]} if self._placed.holds(name) and name in tensors else {}
            owner = {name: self._placed.owner(name)}
            group, keeps = self._cpu_group, self.is_first_of_stage
            yield from state.collect(here, owner, group, keeps).items()

    def collect_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """As `lightning_module_state_dict`; parameters have their usual ids."""
        if self.keeps_shards:
            return optimizer.state_dict()
        module, group, keeps = self._connected_module, self._cpu_group, self.is_first_of_stage
        return state.whole_optimizer_state(module, optimizer, self._placed, group, keeps)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Take the state of this rank's parameters."""
        states = optimizer_states_here(checkpoint["optimizer_states"], self.optimizers)
        parts = [
            state.optimizer_part(self._connected_module, optimizer, each, self._placed)
            for optimizer, each in zip(self.optimizers, states, strict=True)
        ]
        super().load_optimizer_state_dict({**checkpoint, "optimizer_states": parts})

    # The end

    def on_train_end(self) -> None:
        """The last steps have been checked, too."""
        self.loss_check.read()
        super().on_train_end()

    def teardown(self) -> None:
        """Release the device; Lightning's own would move parameters that have no memory."""
        self.let_go()
        self._patches.close()
        _optimizers_to_device(self.optimizers, torch.device("cpu"))
        self._move(self._connected_module, torch.device("cpu"))
        self.precision_plugin.teardown()
        cast(Any, self.accelerator).teardown()
        self.checkpoint_io.teardown()
