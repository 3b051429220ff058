"""An axis of a mesh: what it plans for a task, and what it makes of it.

A strategy has a list of them, from the outermost to the innermost: pipeline stages, then tensor
parallelism, sharded sequences, sharded parameters. Each works on the result of the one before:

    parts = axis.plan(task, parts, setting)       before anything changes
    applied = axis.apply(task, parts, setting)    changes the task, and says what its steps need
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor
from torch.optim import Optimizer

from .layout import Part
from .mesh.ranks import Ranks
from .mesh.sizes import Sizes
from .step import StepContext


@dataclass(frozen=True)
class Setting:
    """What axes are applied in.

    Attributes:
        name: The strategy's name in ``strategy=...``, for errors.
        ranks: The ranks of the run.
        precision: Lightning's precision plugin.
    """

    name: str
    ranks: Ranks
    precision: Precision


class State:
    """The state of a network; here every rank holds all of it."""

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

    def iter_full_tensors(
        self, task: LightningModule, tensors: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor unsharded on rank 0, one after the other; nothing on the others."""
        return iter(tensors.items())

    def counted(self, parameters: list[Tensor]) -> list[Tensor]:
        """The parameters of this rank that no other stage counts in a norm."""
        return parameters

    def check(self) -> None:
        """Raise what the steps have found wrong; called after a fit."""


def just(task: LightningModule, context: StepContext, step: Callable[[], Any]) -> Any:
    """Call a step, and nothing else."""
    return step()


def unchanged(task: LightningModule, loss: Tensor) -> Tensor:
    """The loss itself."""
    return loss


def call(task: LightningModule, inputs: Any) -> None:
    """Call the network."""
    task(inputs)


@dataclass(frozen=True)
class Applied:
    """What an axis does with a task once it is applied; what is left out, it leaves alone."""

    around: Callable[[LightningModule, StepContext, Callable[[], Any]], Any] = just
    """Runs a step of the task."""
    backward: Callable[[LightningModule, Tensor], Tensor] = unchanged
    """The loss to run the backward pass of."""
    state: State | None = None
    """The state of the network, if the axis knows which part of it this rank holds."""
    connected: Callable[[LightningModule], AbstractContextManager[Any]] = lambda _: nullcontext()
    """Entered for the length of a fit or an evaluation."""
    optimizers: Callable[[list[Optimizer]], None] = lambda _: None
    """Validates the optimizers of this rank's parameters."""
    moves: Callable[[Tensor], bool] = lambda _: True
    """Whether a parameter or buffer belongs on this rank's device."""
    forward: Callable[[LightningModule, Any], None] = call
    """Passes inputs through the network at once, without micro-batches."""
    has_weighed: Callable[[], bool] = lambda: False
    """Whether the gradients of the current step are weighted by this rank's share already."""
    sees_share: Callable[[], bool] = lambda: True
    """Whether the current step sees this rank's full share of a batch, not a micro-batch."""
    explained: Callable[[BaseException, LightningModule], BaseException | None] = lambda *_: None
    """Explains an error that the axis causes in one line; None for any other error."""


class Parallelism:
    """One axis: two functions, and what they are given.

    Attributes:
        follows_compile: Whether it is applied after activation checkpointing and torch.compile.
        offloads: Whether parameters of a rank on a GPU may live on the CPU.
    """

    follows_compile: bool = False
    offloads: bool = False

    def is_needed(self, sizes: Sizes) -> bool:
        """Whether there is anything to do on a mesh with these sizes."""
        return True

    def plan(self, task: LightningModule, parts: list[Part], setting: Setting) -> list[Part]:
        """Decide how the parts are divided, before anything changes. All ranks decide the same."""
        return parts

    def apply(self, task: LightningModule, parts: list[Part], setting: Setting) -> Applied:
        """Reduce the task to what this rank has of it, in place. Parameters keep their names.

        There are no parts if another Trainer has applied the same axis before.
        """
        raise NotImplementedError
