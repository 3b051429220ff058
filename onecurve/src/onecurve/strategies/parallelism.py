"""The interface of a parallelism: what one axis of a mesh does with a task.

A strategy has a list of parallelisms, from the outermost to the innermost: pipeline stages, then
tensor parallelism, sharded sequences, sharded parameters. Each works on the result of the one
before.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor
from torch.optim import Optimizer

from ..checkpoint.lazy_tensors import model_state_here
from .fsdp.state import cut_like, cut_optimizer_state
from .layout import Part
from .mesh.ranks import Ranks
from .mesh.sizes import Sizes
from .step import StepContext


class Parallelism:
    """One axis. By default every method does nothing.

    Attributes:
        name: The strategy's name in ``strategy=...``, for errors.
        ranks: The ranks of the run.
        precision: Lightning's precision plugin.
    """

    holds_state: bool = False
    """Whether it knows which part of the network's state this rank holds."""
    sees_share: bool = True
    """Whether the current step sees this rank's full share of a batch, not a micro-batch."""
    has_weighed: bool = False
    """Whether the gradients of the current step are weighted by this rank's share already."""
    offloads: bool = False
    """Whether parameters of a rank on a GPU may live on the CPU."""

    name: str = ""
    ranks: Ranks
    precision: Precision

    def is_needed(self, sizes: Sizes) -> bool:
        """Whether there is anything to do on a mesh with these sizes."""
        return True

    def join(self, name: str, ranks: Ranks, precision: Precision) -> None:
        """Join a fit or an evaluation, once the process group exists."""
        self.name, self.ranks, self.precision = name, ranks, precision

    # This rank's part

    def is_applied(self, task: LightningModule) -> bool:
        """Whether an earlier fit or test has already reduced the task to this rank's part."""
        return False

    def plan(self, task: LightningModule, parts: list[Part]) -> list[Part]:
        """Decide how the parts are divided, before anything changes. All ranks decide the same."""
        return parts

    def apply(self, task: LightningModule, parts: list[Part]) -> list[Part]:
        """Reduce the task to this rank's part, in place. Parameters keep their names."""
        return parts

    def shard(self, task: LightningModule, parts: list[Part]) -> None:
        """Shard parameters; activation checkpointing and torch.compile have been applied."""

    def connected(self, task: LightningModule) -> AbstractContextManager[Any]:
        """Replace calls of the network for the length of a fit or an evaluation."""
        return nullcontext()

    def moves(self, tensor: Tensor) -> bool:
        """Whether a parameter or buffer belongs on this rank's device."""
        return True

    def set_up_optimizers(self, trainer: Trainer, optimizers: list[Optimizer]) -> None:
        """Validate the optimizers of this rank's parameters."""

    def begin(self, task: LightningModule) -> None:
        """Prepare for the fit or the evaluation that begins."""

    def check(self) -> None:
        """Raise errors found during the steps; called after a fit and before a checkpoint."""

    # Steps

    def run(self, task: LightningModule, context: StepContext, step: Callable[[], Any]) -> Any:
        """Run a step of the task."""
        return step()

    def forward(self, task: LightningModule, inputs: Any) -> None:
        """Pass inputs through the network at once, without micro-batches."""
        task(inputs)

    def before_backward(self, task: LightningModule, loss: Tensor) -> Tensor:
        """The loss to run the backward pass of."""
        return loss

    def accumulating(self) -> AbstractContextManager[None]:
        """Entered for a batch after which the optimizer does not step."""
        return nullcontext()

    def explained(self, error: BaseException, task: LightningModule) -> BaseException | None:
        """Explain an error that this parallelism causes in one line; None for any other error."""
        return None

    # State: called on the one parallelism that `holds_state`

    def local_state(self, task: LightningModule) -> dict[str, Any]:
        """This rank's part of the network's state."""
        state: dict[str, Any] = task.state_dict()
        return state

    def full_state(self, task: LightningModule) -> dict[str, Any]:
        """The full state on the CPU under the original names on rank 0; empty on the others."""
        return self.local_state(task)

    def full_optimizer_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        """Like `full_state`; parameters have Lightning's integer ids."""
        state: dict[str, Any] = optimizer.state_dict()
        return state

    def load_state(self, task: LightningModule, state: Mapping[str, Any], strict: bool) -> None:
        """Load this rank's part of a full state."""
        own = task.state_dict()
        here = model_state_here(state, own)
        task.load_state_dict(
            {name: cut_like(value, own.get(name)) for name, value in here.items()}, strict=strict
        )

    def load_optimizer_state(
        self, task: LightningModule, optimizer: Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Load this rank's part of an optimizer's full state."""
        optimizer.load_state_dict(cut_optimizer_state(state, optimizer))

    def each_full(
        self, task: LightningModule, tensors: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor unsharded on rank 0, one after the other; nothing on the others."""
        return iter(tensors.items())

    def counted(self, parameters: list[Tensor]) -> list[Tensor]:
        """The parameters of this rank that no other stage counts in a norm."""
        return parameters
