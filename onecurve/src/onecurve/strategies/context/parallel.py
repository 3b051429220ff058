"""Context parallelism as an axis of a mesh: every rank computes a shard of each sequence.

In a pipeline, the stages shard the sequences instead (`sequence.Pieces`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from lightning.pytorch import LightningModule

from ...errors import say
from ..mesh.sizes import Sizes
from ..parallelism import Parallelism
from ..patching import replaced
from .sequence import run_on_shards


class ContextParallel(Parallelism):
    """Replaces `forward`: it takes full sequences, and the network gets this rank's shard."""

    _is_used: bool = False

    def is_needed(self, sizes: Sizes) -> bool:
        return sizes.context > 1 and sizes.pipeline == 1

    def connected(self, task: LightningModule) -> AbstractContextManager[Any]:
        shard_forward, group = task.forward, self.ranks.context_group
        assert group is not None

        def forward(*inputs: Any, **options: Any) -> Any:
            self._is_used = True
            return run_on_shards(shard_forward, inputs, group, **options)

        return replaced(task, "forward", forward)

    def run(self, name: str, batch: Any, step: Callable[[], Any]) -> Any:
        """Run a step, and report once if it does not call `self(inputs)`."""
        output = step()
        if not self._is_used and self.ranks.rank == 0:
            say(
                f"strategy.context={self.ranks.sizes.context}: {name} does not call "
                "self(inputs), so no sequence is sharded and every rank computes all of it"
            )
        self._is_used = True
        return output
