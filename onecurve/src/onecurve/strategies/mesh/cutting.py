"""Layers cut within."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lightning.pytorch import LightningModule
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from .sizes import Sizes


class Cutting(NamedTuple):
    """How the ranks of a tensor group share layers.

    Args:
        sizes: Of the whole mesh.
        given: What is cut, and how; "auto" for what is found: see `tensor.plan`.
        sequence: Whether what lies between cut layers works on pieces of the sequence.
        mesh: The ranks, of one dimension.
    """

    sizes: Sizes
    given: Mapping[str, str] | str
    sequence: bool
    mesh: DeviceMesh

    def check(
        self, module: LightningModule, stages: Sequence[Mapping[str, nn.Module]], says: bool
    ) -> list[dict[str, str]]:
        """Find the plan of a network that is not cut yet, and print it.

        Args:
            module: The task.
            stages: The layers of each part by name. No pair of cut layers is over their end.
            says: Whether this rank prints it.

        Returns:
            The plan of each part.

        Raises:
            UserError: If layers cannot be cut so.
        """
        from ..tensor.plan import check_plan, find_plan
        from ..tensor.report import report_plan

        size, shards = self.sizes.tensor, self.sizes.shard * self.sizes.context
        plans = [find_plan(module, layers, self.given, size) for layers in stages]
        plan = {name: style for part in plans for name, style in part.items()}
        check_plan(module, plan, size, shards, f"strategy.tensor={size}", self.sequence)
        if says:
            report_plan(module, plan, size, self.sequence)
        return plans

    def cut(self, module: LightningModule, plan: Mapping[str, str]) -> None:
        """Cut the layers of a part in place.

        Args:
            module: The task.
            plan: What `check` returned for it.
        """
        from ..tensor.apply import apply_plan

        if plan:
            apply_plan(module, plan, self.mesh, self.sequence)
