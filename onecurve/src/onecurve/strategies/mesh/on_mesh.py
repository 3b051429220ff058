"""Ranks that hold a part of the network each, laid out on a mesh of five axes."""

from collections.abc import Mapping
from typing import Any, Literal, cast

import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer

from ...errors import UserError, say, some_of
from ..process_group import RankPerDevice, Seconds
from .sizes import Sizes, filled


class OnMesh(RankPerDevice):
    """One rank a device, every rank with a part of the network; nothing wraps the LightningModule.

    A subclass takes its rank's part of ``self.lightning_module`` in `model_to_device`, which
    Lightning calls before it builds the optimizers.

    Attributes:
        sizes: Of the axes; known once the ranks have met.
        coordinates: Which of the ranks along each axis this one is.
        context_group: The ranks that have pieces of the same sequences; None if they are whole.
        stage_group: The ranks that share the same layers, each with its part of them.

    Args:
        sizes: By axis how many ranks, of which one may be "auto": what the others leave.
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
    """

    sizes: Sizes
    coordinates: Sizes
    context_group: dist.ProcessGroup | None = None
    stage_group: dist.ProcessGroup
    _mesh: DeviceMesh | None = None
    _said_what_is_left_out: bool = False

    def __init__(
        self, sizes: Mapping[str, int | Literal["auto"]], timeout_seconds: Seconds = 300
    ) -> None:
        super().__init__(timeout_seconds)
        self._asked = dict(sizes)

    def lay_out(self) -> None:
        """Make the groups of the axes.

        Raises:
            UserError: If the axes need another number of ranks than there are.
        """
        if self.samples_group is not None:
            return
        try:
            self.sizes = filled(self.world_size, **self._asked)
        except ValueError as error:
            raise UserError(
                f"strategy={self.name}: {error}, and there are {self.world_size}; let the product "
                "of all axes be the number of ranks"
            ) from None
        self.coordinates = self.sizes.coordinates(self.global_rank)
        self.samples_group = self.group_of("replicate", "shard")
        if self.sizes.context > 1:
            self.context_group = self.group_of("context")
        self.stage_group = self.group_of("replicate", "shard", "context", "tensor")

    def group_of(self, *axes: str, backend: str | None = None) -> dist.ProcessGroup:
        """A new group of the ranks that differ from this one in nothing but in these axes."""
        groups = self.sizes.groups(*axes)
        if len(groups) == 1 and backend is None:
            return cast(dist.ProcessGroup, dist.group.WORLD)
        made = [dist.new_group(ranks, self._timeout, backend) for ranks in groups]
        mine = next(i for i, ranks in enumerate(groups) if self.global_rank in ranks)
        return cast(dist.ProcessGroup, made[mine])

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh on which parameters are cut: replicate, pipeline, shard, tensor.

        Of these it has the axes of several ranks, and shard, which takes context in: what is
        gathered to be used may as well lie on ranks that see other positions.
        """
        if self._mesh is None:
            sizes = self.sizes
            shape = sizes._replace(shard=sizes.shard * sizes.context, context=1)._asdict()
            axes = {axis: size for axis, size in shape.items() if size > 1 or axis == "shard"}
            self._mesh = init_device_mesh(
                self.root_device.type, tuple(axes.values()), mesh_dim_names=tuple(axes)
            )
        return self._mesh

    @property
    def data_parallel_rank(self) -> int:  # type: ignore[override]
        """Which share of a batch this rank sees."""
        return self.coordinates.replicate * self.sizes.shard + self.coordinates.shard

    @property
    def data_parallel_size(self) -> int:  # type: ignore[override]
        """How many shares there are."""
        return self.sizes.data_parallel

    @property
    def draws_apart(self) -> bool:
        """Stages, and ranks with other positions, draw each for their part of a step."""
        return self.data_parallel_size * self.sizes.pipeline * self.sizes.context > 1

    @property
    def is_first_of_stage(self) -> bool:
        """Whether this rank is the first of those that hold the same layers."""
        return self.coordinates._replace(pipeline=0) == Sizes(0, 0, 0, 0, 0)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """What the ranks have of different samples, where a task asks: it names the whole world.

        Returns:
            As under `single` the tensor itself, if all ranks see the same samples.
        """
        if group is not None and group is dist.group.WORLD:
            if self.data_parallel_size == 1:
                return tensor
            group = self.samples_group
        return super().all_gather(tensor, group, sync_grads)

    def whole_input(self, layer: nn.Module, value: Tensor) -> Tensor:
        """Put together from the ranks that share a layer whose rows they have cut."""
        size = self.sizes.tensor
        width = getattr(layer, "in_features", value.shape[-1])
        if size == 1 or value.shape[-1] * size != width:
            return value
        from ..tensor.collectives import Group

        return Group(self.mesh["tensor"]).join(value, value.ndim - 1)

    def setup(self, trainer: Trainer) -> None:
        """Set up as Lightning's Strategy does: DDPStrategy would wrap the module or copy it."""
        Strategy.setup(self, trainer)
        self.prepare()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Write one, without networks among the hyperparameters: of these a rank has parts."""
        given = checkpoint.get("hyper_parameters") or {}
        if names := [name for name, value in given.items() if isinstance(value, nn.Module)]:
            kept = {name: value for name, value in given.items() if name not in names}
            checkpoint["hyper_parameters"] = kept
            if self.is_global_zero and not self._said_what_is_left_out:
                say(
                    f"checkpoint: {some_of(names)} of the hyperparameters is left out, of which "
                    f"ranks have parts; save_hyperparameters(ignore={names}) leaves it out always"
                )
            self._said_what_is_left_out = True
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """What a checkpoint holds of an optimizer; parameters have their usual ids."""
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        return self.collect_optimizer_state(optimizer)

    def collect_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """On rank 0 the state of whole parameters, elsewhere nothing; or this rank's part."""
        raise NotImplementedError

    def _setup_model(self, model: LightningModule) -> LightningModule:  # type: ignore[override]
        return model
