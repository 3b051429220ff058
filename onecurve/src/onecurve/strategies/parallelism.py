"""What an axis of a mesh does with a task: the interface of every parallelism.

A strategy has a list of them, from the outermost to the innermost: stages of a pipeline, then
layers that are cut within, pieces of sequences, shards of parameters. Each does its part, and the
next one works on what it leaves.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checkpoint.lazy_tensors import model_state_here
from .fsdp.state import cut_like, cut_optimizer_state
from .layout import Part
from .mesh.ranks import Ranks
from .mesh.sizes import Sizes
from .step import TaskStep


class Parallelism:
    """One axis. Every method does nothing unless a subclass says otherwise.

    Attributes:
        name: What ``strategy=...`` calls the strategy, for errors.
        ranks: Of the run.
        step: The step of the task that is under way.
        precision: Lightning's.
    """

    holds_state: bool = False
    """Whether it knows which part of the network's state this rank holds."""
    sees_share: bool = True
    """Whether the step works on this rank's whole share of a batch just now."""
    offloads: bool = False
    """Whether parameters on a GPU's rank may lie on the CPU."""

    name: str = ""
    ranks: Ranks
    step: TaskStep
    precision: Precision

    def is_needed(self, sizes: Sizes) -> bool:
        """Whether there is anything to do on a mesh of these sizes."""
        return True

    def join(self, name: str, ranks: Ranks, step: TaskStep, precision: Precision) -> None:
        """Take part in a fit or an evaluation, once the ranks have met."""
        self.name, self.ranks, self.step, self.precision = name, ranks, step, precision

    # This rank's part

    def is_applied(self, task: LightningModule) -> bool:
        """Whether the task is this rank's part already, from a fit or a test before."""
        return False

    def plan(self, task: LightningModule, parts: list[Part]) -> list[Part]:
        """Decide how the parts are divided, before anything changes; all ranks decide alike."""
        return parts

    def apply(self, task: LightningModule, parts: list[Part]) -> list[Part]:
        """Keep this rank's part, in place. Parameters keep their names."""
        return parts

    def shard(self, task: LightningModule, parts: list[Part]) -> None:
        """Divide parameters, once layers are compiled, and compute again in a backward pass."""

    def connected(self, task: LightningModule) -> AbstractContextManager[Any]:
        """For the length of a fit or an evaluation: let calls of the network be what they are."""
        return nullcontext()

    def moves(self, tensor: Tensor) -> bool:
        """Whether a parameter or buffer is to lie on this rank's device."""
        return True

    def set_up_optimizers(self, trainer: Trainer, optimizers: list[Optimizer]) -> None:
        """Validate the optimizers, which have been made of this rank's parameters."""

    def begin(self, task: LightningModule) -> None:
        """A fit or an evaluation begins."""

    def check(self) -> None:
        """Raise what was noticed meanwhile: a fit is over, or a checkpoint is written."""

    # Steps

    def run(self, name: str, batch: Any, step: Callable[[], Any]) -> Any:
        """Run a step of the task.

        Args:
            name: "training_step", "validation_step", "test_step" or "predict_step".
            batch: What it gets.
            step: The step.
        """
        return step()

    def forward(self, task: LightningModule, inputs: Any) -> None:
        """Pass inputs through the network in one piece."""
        task(inputs)

    def before_backward(self, task: LightningModule, loss: Tensor) -> Tensor:
        """A loss whose backward pass comes next."""
        return loss

    def accumulating(self) -> AbstractContextManager[None]:
        """For a batch that is only accumulated."""
        return nullcontext()

    def full_input(self, layer: nn.Module, value: Tensor) -> Tensor:
        """What enters a layer, of which a hook may have seen a part (see `ForCallbacks`)."""
        return value

    def explained(self, error: BaseException, task: LightningModule) -> BaseException | None:
        """What PyTorch says of this parallelism in one line; None if it says something else."""
        return None

    # State: of the outermost parallelism

    def local_state(self, task: LightningModule) -> dict[str, Any]:
        """What this rank holds of the network's state."""
        state: dict[str, Any] = task.state_dict()
        return state

    def full_state(self, task: LightningModule) -> dict[str, Any]:
        """On rank 0 the unsharded state on the CPU under the original names; elsewhere nothing."""
        return self.local_state(task)

    def full_optimizer_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        """As `full_state`; parameters have their usual ids."""
        state: dict[str, Any] = optimizer.state_dict()
        return state

    def load_state(self, task: LightningModule, state: Mapping[str, Any], strict: bool) -> None:
        """Take this rank's part of a full state."""
        own = task.state_dict()
        here = model_state_here(state, own)
        task.load_state_dict(
            {name: cut_like(value, own.get(name)) for name, value in here.items()}, strict=strict
        )

    def load_optimizer_state(
        self, task: LightningModule, optimizer: Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Take this rank's part of an optimizer's full state."""
        optimizer.load_state_dict(cut_optimizer_state(state, optimizer))

    def each_full(
        self, task: LightningModule, tensors: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor]]:
        """On rank 0 each tensor unsharded, one after the other; elsewhere nothing."""
        return iter(tensors.items())

    def counted(self, parameters: list[Tensor]) -> list[Tensor]:
        """Of this rank's parameters those that no other stage counts in a norm."""
        return parameters
