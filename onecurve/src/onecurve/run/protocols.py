"""What a run asks for beside Lightning's hooks. To have the attribute is to take part."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class HasFinalFacts(Protocol):
    """A callback that has something to say of the whole run.

    Attributes:
        final_facts: Numbers by name, for metrics.json and the table at the end; read after the
            final test.
    """

    final_facts: dict[str, float]


@runtime_checkable
class HasEnd(Protocol):
    """A logger that keeps something open until the run has ended, its final test included."""

    def end(self) -> None:
        """Called once, on every rank."""


@runtime_checkable
class HasFinalWeights(Protocol):
    """A callback that makes the weights to keep, as stochastic weight averaging does.

    Attributes:
        final_weights: The checkpoint that the final test takes instead of the best one; None if
            there is none.
    """

    final_weights: str | None


@runtime_checkable
class Predicts(Protocol):
    """A task that knows best what to make of what it has learned: text, drawings."""

    def predict(self, options: Mapping[str, Any], data_module: Any, run_dir: Path) -> None:
        """What ``python predict.py`` does: write something, to the terminal or to files.

        One process calls it, on one device, with the weights of the checkpoint, in evaluation mode
        and without gradients.

        Args:
            options: What stands below ``predict:`` in the configuration, as a plain dictionary.
            data_module: As the checkpoint describes it; its `setup` was not called.
            run_dir: Where files go.
        """


@runtime_checkable
class ReadsImages(Protocol):
    """A data module that makes the network's input of files: `predict.images`."""

    def find_images(self, path: str) -> list[Path]:
        """The image files at a path, a file or a folder."""

    def read_images(self, files: Sequence[Path]) -> Tensor:
        """These files as they reach the network in evaluation (N, ...)."""
