"""What a network is given of each sequence: all of it, unless ranks have pieces of them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor


class WholeSequences:
    """All of it. `context.sequence.Pieces` is the other one."""

    def cut(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What the network is given of its inputs."""
        return inputs

    def working(self, inputs: tuple[Tensor, ...]) -> AbstractContextManager[None]:
        """Entered around the network's passes for these inputs, which are not cut."""
        return nullcontext()

    def outside(self) -> AbstractContextManager[None]:
        """Entered within `working` for what is no pass of the network: the loss, shapes."""
        return nullcontext()

    def whole(self, outputs: Any, inputs: tuple[Tensor, ...]) -> Any:
        """What the task is given of the outputs for these inputs, differentiable."""
        return outputs
