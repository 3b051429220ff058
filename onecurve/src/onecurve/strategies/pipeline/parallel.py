"""`strategy=pipeline`: consecutive layers on each rank; micro-batches pass through them.

The task's steps run on every rank: where they call the network, the pipeline runs instead and every
rank gets the last stage's outputs; so loss, metrics and logs are those of the whole batch,
everywhere. What is not in the layers (`network.py`) stays whole on every rank, and is computed
there. PyTorch's own schedules do the work where the task declares its loss (`runner.py`).

Exact: the loss curve of `single`, to float tolerance, for every schedule, batch size, number of
micro-batches and of replicas, with accumulation, clipping and frozen layers; as GPipe also with
several calls of the network and several optimizers. Not exact: BatchNorm (statistics of each
micro-batch), dropout (each stage draws its own masks).
Rejects: what needs the parameters or the gradients of all ranks at once.
Where ranks share the parameters of a stage, FSDP2 averages its gradients after the last
micro-batch.
Memory per rank: its own layers' parameters, gradients and optimizer state, and the activations of
the micro-batches under way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.optim import Optimizer

from ...arguments import configured_by
from ...compat.of_lightning import accumulates
from ...compat.patches import replaced
from ...errors import UserError
from ...torch_versions import require
from ..batchnorm import report_statistics
from ..fsdp.state import gather
from ..layout import Part
from ..mesh.ranks import Ranks
from ..options import PipelineOptions, StageOptions
from ..parallelism import Applied, Parallelism, Setting, State
from ..prepare import example_of
from ..step import StepContext
from ..strategy import OneCurve
from .gradients import (
    agree_on_overflow,
    average,
    ending_with,
    explained,
    scaler_of,
)
from .limits import SCHEDULES
from .network import find_networks
from .partition import Partition, Placement, Stages, report_partition
from .remote import RemoteParameter, add_gradients
from .remote import set_up_optimizers as set_up
from .runner import Runner
from .schedule import StageModule
from .shapes import LayerShapes, Tensors


class Plan(NamedTuple):
    """Which rank of a pipeline holds what of a task; the same on all ranks."""

    stages: list[Stages]
    """Those of each network; the first is the one that steps call."""
    placement: Placement


def plan_stages(task: LightningModule, options: StageOptions, setting: Setting) -> Plan:
    """Partition the networks of a task."""
    ranks, precision = setting.ranks, setting.precision
    number, usual = options.stages_per_rank, SCHEDULES[options.schedule].stages_per_rank
    per_rank = usual if number == "auto" else number
    divided: list[Stages] = []
    for network in find_networks(task, ranks.sizes.pipeline * per_rank):
        calls, also = network.measured()
        shapes = LayerShapes(calls, precision.forward_context, also)
        partition = Partition.of(
            # All ranks must divide it at the same layers.
            task.trainer.strategy.broadcast(shapes.costs(example_of(task, precision))),
            num_ranks=ranks.sizes.pipeline,
            stages_per_rank=per_rank,
            v_shaped=options.schedule == "zbv",
            balance="auto" if divided else options.balance,
        )
        divided.append(Stages(network, list(calls.values()), partition, {}, shapes, ranks))
    owned = [each for stages in divided for each in stages.held()]
    return Plan(divided, Placement(task, owned, ranks.coordinates.pipeline))


def apply_plan(plan: Plan, parts: list[Part], precision: Precision) -> None:
    """Free the layers of other ranks, and make a module of each stage of this rank."""
    plan.placement.free_others()
    remaining = iter(parts)
    for stages in plan.stages:
        for index, held in enumerate(stages.partition.ranges):
            part = next(remaining)
            if part.is_here:
                layers = [stages.calls[layer] for layer in held]
                stage = StageModule(layers, precision.forward_context)
                stages.modules[index] = part.root = stage


class PipelineParallel(Parallelism, State):
    """Pipelines side by side: every rank with layers of its own. See `Pipeline` for its arguments.

    Attributes:
        planned: Which rank of a pipeline holds what; set once the network is partitioned.
    """

    name: str
    ranks: Ranks
    precision: Precision
    planned: Plan
    runner: Runner
    _cpu_group: dist.ProcessGroup | None = None
    # Parameters that are in no layer.
    _unstaged: Sequence[Tensor] = ()
    # What other ranks hold, and gradients without numbers.
    _remote: Mapping[RemoteParameter, Tensor]

    def __init__(self, options: StageOptions) -> None:
        require(f"strategy.schedule={options.schedule}")
        self.options = options

    @property
    def stages(self) -> list[Stages]:
        """The stages of each network."""
        return self.planned.stages

    def _owner(self, name: str) -> int | None:
        return self.planned.placement.owner(name)

    # This rank's part

    def plan(self, task: LightningModule, parts: list[Part], setting: Setting) -> list[Part]:
        """Partition the network."""
        self.name, self.ranks, self.precision = setting.name, setting.ranks, setting.precision
        if self._cpu_group is None:
            # For checkpoints, which travel through the CPU.
            self._cpu_group = self.ranks.group_of("pipeline", backend="gloo")
        self.planned = plan_stages(task, self.options, setting)
        self._takes = signature(self.stages[0].network.owner.forward)
        owned = [each for stages in self.stages for each in stages.held()]
        rank = self.ranks.coordinates.pipeline
        return [Part(task, layers, is_here=owner == rank) for layers, owner in owned]

    def apply(self, task: LightningModule, parts: list[Part], setting: Setting) -> Applied:
        """Keep this rank's layers, and make a module of each stage."""
        apply_plan(self.planned, parts, setting.precision)
        self._unstaged = [p for name, p in task.named_parameters() if self._owner(name) is None]
        remote = [each for each in task.parameters() if isinstance(each, RemoteParameter)]
        self._remote = {each: torch.empty_like(each) for each in remote}
        return Applied(
            around=self.run,
            backward=self.before_backward,
            state=self,
            connected=self.connected,
            optimizers=self.set_up_optimizers,
            forward=self.forward,
            has_weighed=lambda: self.runner.ran_by_schedule,
            sees_share=lambda: not self.runner.takes_loss,
            explained=self.explained,
        )

    def connected(self, task: LightningModule) -> AbstractContextManager[Any]:
        """Let calls of the network go through all stages, whose parameters are sharded by now."""
        network = self.stages[0].network
        if not hasattr(self, "runner"):
            self.runner = Runner(
                task,
                self.stages[0],
                self.options.schedule,
                self.options.microbatches,
                self.precision,
                placed=lambda name: self._owner(name) is not None,
            )
        self.runner.begin()
        self._patches = ExitStack()
        if network.blocks is None:
            self._patches.enter_context(replaced(network.owner, "forward", self._network_forward))
        for stages in self.stages:
            if stages.network.blocks is not None:
                stages.network.blocks.pipeline = partial(self.runner.forward, stages=stages)
                self._patches.enter_context(stages.network.blocks.connected())
        return self._patches

    def set_up_optimizers(self, optimizers: list[Optimizer]) -> None:
        if self.ranks.sizes.pipeline > 1:
            set_up(optimizers, scaler_of(self.precision), self._patches)

    def check(self) -> None:
        # No weights are saved that were trained on another loss than was logged.
        self.runner.loss_check.read()

    # Steps

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _network_forward(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self._takes.bind(*args, **kwargs).args if kwargs else args
        if len(inputs) == 1 and isinstance(inputs[0], tuple):
            (inputs,) = inputs  # an nn.Sequential takes several as one
        if not inputs or not all(isinstance(value, Tensor) for value in inputs):
            raise UserError(
                "strategy=pipeline: the layers must be called with tensors, and got "
                f"{', '.join(type(value).__name__ for value in inputs) or 'nothing'}; take them "
                "out of what holds them before, or use strategy=fsdp"
            )
        outputs = self.runner.forward(inputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, task: LightningModule, context: StepContext, step: Callable[[], Any]) -> Any:
        """Run a step of the task, in which calls of the network go through the pipeline."""
        blocks = self.stages[0].network.blocks
        # A step may go through the blocks itself.
        of_task = blocks if blocks is not None and blocks.holder is task else None
        with of_task.standing_in() if of_task else nullcontext():
            result = self.runner.run(context, step)
        if self.runner.inputs:
            self._report(task, self.runner.inputs)
            self.runner.inputs = ()
        return result

    def _report(self, task: LightningModule, inputs: Tensors) -> None:
        strategy: Any = task.trainer.strategy
        if self.ranks.rank != 0:
            return
        for stages in self.stages:
            schedule, count = self.runner.plan(inputs)
            title = f"Pipeline of {stages.network.name}" if self.stages[1:] else "Pipeline"
            if strategy.prints_layers:
                report_partition(stages, title, schedule, count, len(inputs[0]))
        if count > 1:
            report_statistics(task, self.name, "each micro-batch")

    def forward(self, task: LightningModule, inputs: Any) -> None:
        self.runner.fill_drain((inputs,), chunks=1)

    # Gradients

    def before_backward(self, task: LightningModule, loss: Tensor) -> Tensor:
        """Average gradients before a hook sees them, as DistributedDataParallel does."""
        return ending_with(loss, partial(self._finish_backward, task))

    def _finish_backward(self, task: LightningModule) -> None:
        """Average over the replicas, once for all accumulated batches."""
        add_gradients(self._remote)
        if accumulates(task.trainer):
            return
        if self.ranks.sizes.data_parallel > 1:
            # FSDP2 has averaged those of stages that it shards.
            full = list(self._unstaged)
            for stages in self.stages:
                full += [] if self.ranks.sizes.shares_layers else stages.parameters()
            average([p.grad for p in full if p.grad is not None], self.ranks.samples_group)
        if scaler_of(self.precision) is not None:
            agree_on_overflow(task.parameters(), self.ranks.device)

    def counted(self, parameters: list[Tensor]) -> list[Tensor]:
        """Parameters that are in no layer are counted by the first rank of a pipeline."""
        if self.ranks.coordinates.pipeline == 0:
            return parameters
        unstaged = set(map(id, self._unstaged))
        return [parameter for parameter in parameters if id(parameter) not in unstaged]

    def explained(self, error: BaseException, task: LightningModule) -> BaseException | None:
        if self.runner.ran_by_schedule and "does not require grad" in str(error):
            return UserError(
                f"strategy=pipeline: {type(task).__name__}.training_step computes a gradient of "
                "its network's outputs, whose backward pass the schedule has run; use "
                "strategy.schedule=gpipe, which takes any step"
            )
        return explained(error, task, self.stages[0].network, self.name)

    # State

    def _collect(self, items: Mapping[Any, Any], names: Mapping[Any, str]) -> dict[Any, Any]:
        """Gather items on rank 0 from the ranks of its pipeline, on the CPU; nothing elsewhere.

        One by one, and their shards first, so all ranks call this. The name of each item tells
        which rank has it; on all ranks the names are in the same order.
        """
        group, keep = self._cpu_group, self.ranks.is_first_of_stage
        rank = dist.get_rank(group)
        collected: dict[Any, Any] = {}
        for key, name in names.items():
            owner = self._owner(name) or 0
            box = [gather(items.get(key), keep) if rank == owner else None]
            if keep and owner != 0 and rank == owner:
                dist.send_object_list(box, group=group, group_dst=0)
            elif keep and owner != 0 and rank == 0:
                dist.recv_object_list(box, group=group, group_src=owner)
            if keep and rank == 0 and box[0] is not None:
                collected[key] = box[0]
        return collected

    def local_state(self, task: LightningModule) -> dict[str, Any]:
        self.check()
        here = (None, self.ranks.coordinates.pipeline)
        state = task.state_dict()
        return {name: v for name, v in state.items() if self._owner(name) in here}

    def full_state(self, task: LightningModule) -> dict[str, Any]:
        self.check()
        state = task.state_dict()
        return self._collect(state, {name: name for name in state})

    def full_optimizer_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        state = optimizer.state_dict()
        if not state:  # Lightning's own, of a task without an optimizer
            return {}
        name_of = {parameter: name for name, parameter in task.named_parameters()}
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        names = {number: name_of[parameter] for number, parameter in enumerate(parameters)}
        return {**state, "state": self._collect(state["state"], names)}

    def iter_full_tensors(
        self, task: LightningModule, tensors: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor]]:
        for name, _ in task.named_parameters():
            yield from self._collect(tensors, {name: name}).items()


class Pipeline(OneCurve, DDPStrategy):
    """Pipeline parallelism for an ordinary LightningModule.

    Neighbouring ranks form a pipeline. If the micro-batches do not divide a batch, the nearest
    number that does is used for it. The arguments are described in `PipelineOptions`.
    """

    name = "pipeline"

    @configured_by(PipelineOptions, "strategy")
    def __init__(self, options: PipelineOptions) -> None:
        super().__init__(
            options,
            {"replicate": options.replicas, "pipeline": "auto"},
            [PipelineParallel(options)],
        )
