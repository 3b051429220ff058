"""Tensor parallelism as an axis of a mesh: ranks share the matrices of layers."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard

from ..collectives import redistribute
from ..layout import Part, move
from ..mesh.sizes import Sizes
from ..parallelism import Parallelism
from .parallelize import apply_plan
from .plan import check_plan, find_plan
from .report import report_plan
from .sharded_logits import sharded_logits


class TensorParallel(Parallelism):
    """Shards the layers of a task over the ranks of a tensor group."""

    def __init__(self, given: Mapping[str, str] | str, sequence: bool) -> None:
        self.given = given
        self.sequence = sequence

    def is_needed(self, sizes: Sizes) -> bool:
        return sizes.tensor > 1

    def plan(self, task: LightningModule, parts: list[Part]) -> list[Part]:
        """Find, validate and print the plan of each part. Pairs of layers never span two parts."""
        strategy: Any = task.trainer.strategy
        size = self.ranks.sizes.tensor
        for part in parts:
            part.plan = find_plan(task, part.layers, self.given, size)
        plan = {name: style for part in parts for name, style in part.plan.items()}
        check_plan(task, plan, size, f"strategy.tensor={size}", self.sequence)
        if self.ranks.rank == 0 and strategy.prints_layers:
            report_plan(task, plan, size, self.sequence)
        return parts

    def apply(self, task: LightningModule, parts: list[Part]) -> list[Part]:
        move(task, self.ranks.device)
        for part in parts:
            if part.plan:
                apply_plan(task, part.plan, self.ranks.mesh["tensor"], self.sequence)
        return parts

    def run(self, name: str, batch: Any, step: Callable[[], Any]) -> Any:
        if self.ranks.sizes.context > 1:
            return step()  # logits gathered along the sequence are full
        with sharded_logits():
            return step()

    def full_input(self, layer: nn.Module, value: Tensor) -> Tensor:
        """Gather the input of a rowwise layer, of which each rank sees its features only."""
        size = self.ranks.sizes.tensor
        width = getattr(layer, "in_features", value.shape[-1])
        if value.shape[-1] * size != width:
            return value
        group = self.ranks.mesh["tensor"].get_group()
        return redistribute(value, group, Shard(-1), Replicate())
