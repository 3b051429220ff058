"""How a pipeline passes sequences to its stages where they are not sharded."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor


class WholeSequences:
    """Every rank gets full sequences. `context.sequence.Pieces` overrides this with shards."""

    def cut(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The shard of the inputs that this rank's network gets."""
        return inputs

    def working(self, inputs: tuple[Tensor, ...]) -> AbstractContextManager[None]:
        """Entered around the network's passes; `inputs` are the full ones."""
        return nullcontext()

    def outside(self) -> AbstractContextManager[None]:
        """Entered within `working` for all but the network's passes, such as the loss."""
        return nullcontext()

    def whole(self, outputs: Any, inputs: tuple[Tensor, ...]) -> Any:
        """Put the network's outputs for these inputs together; differentiable."""
        return outputs
