"""Ranks that hold some layers each: their groups, and one checkpoint out of what they hold."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...checkpoint.stored import model_state_here, optimizer_states_here
from ..fsdp.state import cut_like
from ..mesh.sharded import Sharded
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


class LayersPerRank(Sharded):
    """Pipelines side by side, each of which saves the layers of its ranks as one network.

    Attributes:
        placement: Which rank of a pipeline holds what; None until the network is partitioned.
    """

    placement: Placement | None = None

    @property
    def cuts_parameters(self) -> bool:
        """Whether ranks share the parameters of a stage; else each has them whole."""
        return self.sizes.shard * self.sizes.context * self.sizes.tensor > 1

    def setup_environment(self) -> None:
        """Join the process group, then make the groups of a pipeline."""
        super().setup_environment()
        if self.parts_group is None:
            self.parts_group = self.group_of("pipeline")
            # For checkpoints, which travel through the CPU.
            self._cpu_group = self.group_of("pipeline", backend="gloo")

    # Checkpoints

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """On rank 0 the whole network's state under the original names; elsewhere nothing.

        For a sharded checkpoint what this rank holds.
        """
        module = self._connected_module
        if self.keeps_shards:
            return model_part(module, self._placed)
        return whole_model_state(module, self._placed, self._cpu_group, self.is_first_of_stage)

    def load_model_state_dict(self, checkpoint: Any, strict: bool = True) -> None:
        """Load a whole network's state; once the network is partitioned, this rank's part of it."""
        if self.placement is None:
            super().load_model_state_dict(checkpoint, strict)
            return
        module = self._connected_module
        own = module.state_dict()
        state = model_state_here(checkpoint["state_dict"], own)
        cut = {name: cut_like(value, own.get(name)) for name, value in state.items()}
        load_model_part(module, cut, self.placement, strict)

    def each_whole(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Brought to rank 0 by the ranks that hold them."""
        for name, _ in self._connected_module.named_parameters():
            here = {name: tensors[name]} if self._placed.holds(name) and name in tensors else {}
            owner = {name: self._placed.owner(name)}
            yield from collect(here, owner, self._cpu_group, self.is_first_of_stage).items()

    def gradient_norm(self) -> Tensor:
        """Each rank adds what it has."""
        with asking(None):
            return super().gradient_norm()

    def collect_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """As `lightning_module_state_dict`; parameters have their usual ids."""
        if self.keeps_shards:
            return optimizer.state_dict()
        return whole_optimizer_state(
            self._connected_module,
            optimizer,
            self._placed,
            self._cpu_group,
            self.is_first_of_stage,
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
