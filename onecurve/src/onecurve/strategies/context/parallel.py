"""Pieces of every sequence on each rank: context parallelism of a network that is called whole.

In a pipeline the stages take their pieces themselves.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from lightning.pytorch import LightningModule

from ...errors import say
from ..mesh.sizes import Sizes
from ..parallelism import Parallelism
from ..redirect import replaced
from .sequence import on_pieces


class ContextParallel(Parallelism):
    """`forward` takes full sequences, of which the network is given this rank's piece."""

    _is_used: bool = False

    def is_needed(self, sizes: Sizes) -> bool:
        return sizes.context > 1 and sizes.pipeline == 1

    def connected(self, task: LightningModule) -> AbstractContextManager[Any]:
        of_piece, group = task.forward, self.ranks.context_group
        assert group is not None

        def forward(*inputs: Any, **options: Any) -> Any:
            self._is_used = True
            return on_pieces(of_piece, inputs, group, **options)

        return replaced(task, "forward", forward)

    def run(self, name: str, batch: Any, step: Callable[[], Any]) -> Any:
        """Say it once if there is nothing to divide in what a step calls."""
        output = step()
        if not self._is_used and self.ranks.rank == 0:
            say(
                f"strategy.context={self.ranks.sizes.context}: {name} does not call "
                "self(inputs), so no sequence is cut, and every rank computes all of it"
            )
        self._is_used = True
        return output
