"""Which stages a rank of a pipeline holds, and what it makes of them before the first step."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn
from torch.distributed import ProcessGroup as Group

from ...errors import UserError
from ..fsdp.units import check_wrap
from ..mesh.cutting import Cutting
from ..sequences import WholeSequences
from ..trial import report_changed
from ..weight import weight_of
from .checks import check_structure, network_inputs
from .composition import check_composition
from .layers_per_rank import LayersPerRank
from .limits import SCHEDULES, Schedule
from .loss_check import LossCheck
from .partition import Partition
from .partition_table import report_partition
from .passes import Passes
from .placement import Placement, stage_tensors
from .shapes import LayerShapes


class StagesPerRank(LayersPerRank):
    """Every rank with layers of its own, or with its shard of their parameters.

    Args:
        given: What `Sharded` takes.
        schedule: A key of `limits.SCHEDULES`.
        microbatches: How many a batch.
        stages_per_rank: Stages a rank holds; "auto" takes what the schedule is made for.
        balance: "auto", or the number of layers of each stage.

    Raises:
        UserError: If there is no such schedule.
    """

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

    def model_to_device(self) -> None:
        """Partition the network, keep this rank's layers and put them on the device."""
        module = self._connected_module
        if self.placement is None:
            self._partition(module.trainer)
        self._move(module, self.root_device)

    def _partition(self, trainer: Trainer) -> None:
        module = self._connected_module
        layers = check_structure(module)
        check_wrap(module, self.sharding.wrap)
        inputs = network_inputs(trainer)
        changed = check_composition(module, layers, inputs)
        context = self.precision_plugin.forward_context
        shapes = LayerShapes(layers, context)
        partition = Partition.of(
            # Replicas whose shares differ by a sample must cut at the same layers.
            self.broadcast(shapes.costs(inputs)),
            num_ranks=self.sizes.pipeline,
            stages_per_rank=self.stages_per_rank,
            v_shaped=self.schedule == "zbv",
            balance=self.balance,
        )
        self.placement = Placement(module, layers, partition, self.coordinates.pipeline)
        plans: list[dict[str, str]] = []
        if self.sizes.tensor > 1:
            held = [self.placement.layers_of(stage) for stage in range(self.placement.num_stages)]
            plans = self._cutting.check(module, held, self.is_global_zero)
        stages = self._take_part(self.placement, plans)
        self.passes = Passes(
            module,
            self.placement,
            stages,
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
            deposited=self.average_gradients,
        )
        mixed = isinstance(self.precision_plugin, MixedPrecision)
        on_cpu = self.root_device.type == "cpu"
        self.loss_check = LossCheck(module, mixed=mixed, at_once=on_cpu)
        if trainer.state.fn == TrainerFn.FITTING and self.is_global_zero:
            report_changed("pipeline", "micro-batch", changed)
            report_partition(
                trainer, self.placement, *self.passes.schedule_of(inputs), len(inputs[0])
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
        stages = placement.take_part(self.precision_plugin.forward_context)
        # Start replicas from the same weights, as DistributedDataParallel does.
        self._copy_first_rank(*stage_tensors(stages))
        if plans:
            self._move(self._connected_module, self.root_device)
            for index in stages:
                self._cutting.cut(self._connected_module, plans[index])
        parts = [stage.get_submodule("layers") for stage in stages.values()]
        self.make_layers(layer for part in parts for layer in part.children())
        if self.cuts_parameters:
            for stage in stages.values():
                self._shard(stage)
        return stages

    @abstractmethod
    def average_gradients(self) -> None:
        """Called once a batch's gradients are deposited."""
