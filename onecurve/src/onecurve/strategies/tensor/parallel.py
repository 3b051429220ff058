"""Layers whose matrices ranks share, each with its part of the work: tensor parallelism."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard

from ..layout import Part, move
from ..mesh.sizes import Sizes
from ..parallelism import Parallelism
from .apply import apply_plan
from .plan import check_plan, find_plan
from .regions import redistribute
from .report import report_plan
from .sharded_logits import sharded_logits


class TensorParallel(Parallelism):
    """How the ranks of a tensor group share layers."""

    def __init__(self, given: Mapping[str, str] | str, sequence: bool) -> None:
        self.given = given
        self.sequence = sequence

    def is_needed(self, sizes: Sizes) -> bool:
        return sizes.tensor > 1

    def plan(self, task: LightningModule, parts: list[Part]) -> list[Part]:
        """Find the plan of each part, and print it. No pair of layers is over the end of one."""
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
            return step()  # logits put together from pieces of a sequence are full
        with sharded_logits():
            return step()

    def full_input(self, layer: nn.Module, value: Tensor) -> Tensor:
        """Put together from the ranks that share a layer whose rows they have divided."""
        size = self.ranks.sizes.tensor
        width = getattr(layer, "in_features", value.shape[-1])
        if value.shape[-1] * size != width:
            return value
        return redistribute(value, self.ranks.mesh["tensor"], Shard(-1), Replicate())
