"""Ranks that hold some layers each: their groups, and one checkpoint out of what they hold."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from ...checkpoint.stored import model_state_here, optimizer_states_here
from ..process_group import PartPerRank
from .elsewhere import asking
from .placement import Placement
from .state import (
    collect,
    load_model_part,
    model_part,
    optimizer_part,
    whole_model_state,
    whole_optimizer_state,
)


class LayersPerRank(PartPerRank):
    """Pipelines side by side, each of which saves the layers of its ranks as one network.

    Attributes:
        replicas: How many pipelines share the batch. Neighbouring ranks form a pipeline.
        placement: Which rank of a pipeline holds what; None until the network is partitioned.
    """

    replicas: int
    placement: Placement | None = None

    # Ranks and groups

    @property
    def num_ranks(self) -> int:
        """Ranks of one pipeline."""
        return self.world_size // self.replicas

    @property
    def pipeline_rank(self) -> int:
        """This rank's coordinate in its pipeline."""
        return self.global_rank % self.num_ranks

    @property
    def data_parallel_rank(self) -> int:  # type: ignore[override]
        """Which of the replicas this rank belongs to."""
        return self.global_rank // self.num_ranks

    @property
    def data_parallel_size(self) -> int:  # type: ignore[override]
        """Number of replicas."""
        return self.replicas

    def setup_environment(self) -> None:
        """Join the process group, then make the groups of the two axes."""
        super().setup_environment()
        if self.parts_group is None:
            axes = ("replicate", "pipeline")
            shape = (self.replicas, self.num_ranks)
            mesh = init_device_mesh(self.root_device.type, shape, mesh_dim_names=axes)
            self.samples_group = mesh.get_group("replicate")
            self.parts_group = mesh.get_group("pipeline")
            # For checkpoints, which travel through the CPU.
            for first in range(0, self.world_size, self.num_ranks):
                ranks = list(range(first, first + self.num_ranks))
                group = dist.new_group(ranks, backend="gloo")
                if self.global_rank in ranks:
                    self._cpu_group = cast(dist.ProcessGroup, group)

    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        """What the ranks have of different samples, where a task asks: it names the whole world.

        Returns:
            As under `single` the tensor itself, if there is but one pipeline.
        """
        if group is not None and group is dist.group.WORLD:
            if self.replicas == 1:
                return tensor
            group = self.samples_group
        return super().all_gather(tensor, group, sync_grads)

    # Checkpoints

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """On rank 0 the whole network's state under the original names; elsewhere nothing.

        For a sharded checkpoint what this rank holds.
        """
        if self.keeps_shards:
            return model_part(self._connected_module, self._placed)
        if self.data_parallel_rank > 0:
            return {}
        return whole_model_state(self._connected_module, self._placed, self._cpu_group)

    def load_model_state_dict(self, checkpoint: Any, strict: bool = True) -> None:
        """Load a whole network's state; once the network is partitioned, this rank's part of it."""
        if self.placement is None:
            super().load_model_state_dict(checkpoint, strict)
        else:
            state = model_state_here(checkpoint["state_dict"], self._connected_module.state_dict())
            load_model_part(self._connected_module, state, self.placement, strict)

    def each_whole(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Brought to rank 0 by the ranks that hold them."""
        for name, _ in self._connected_module.named_parameters():
            here = {name: tensors[name]} if self._placed.holds(name) and name in tensors else {}
            owner = {name: self._placed.owner(name)}
            if self.data_parallel_rank == 0:
                yield from collect(here, owner, self._cpu_group).items()

    def gradient_norm(self) -> Tensor:
        """Each rank adds what it has."""
        with asking(None):
            return super().gradient_norm()

    def collect_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """As `lightning_module_state_dict`; parameters have their usual ids."""
        if self.keeps_shards:
            return optimizer.state_dict()
        if self.data_parallel_rank > 0:
            return {}
        return whole_optimizer_state(
            self._connected_module, optimizer, self._placed, self._cpu_group
        )

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Take the state of this rank's parameters."""
        states = optimizer_states_here(checkpoint["optimizer_states"], self.optimizers)
        parts = [
            optimizer_part(self._connected_module, optimizer, state, self._placed)
            for optimizer, state in zip(self.optimizers, states, strict=True)
        ]
        super().load_optimizer_state_dict({**checkpoint, "optimizer_states": parts})

    @property
    def _placed(self) -> Placement:
        assert self.placement is not None
        return self.placement
