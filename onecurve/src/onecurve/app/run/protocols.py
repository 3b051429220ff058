"""Hooks beside Lightning's: a run uses them where an object has the attribute or method."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class HasFinalFacts(Protocol):
    """A callback with facts about the whole run.

    Attributes:
        final_facts: Numbers by name, for metrics.json and the table at the end; read after the
            final test.
    """

    final_facts: dict[str, float]


@runtime_checkable
class HasFinalWeights(Protocol):
    """A callback that computes the final weights, as stochastic weight averaging does.

    Attributes:
        final_weights: The checkpoint for the final test, instead of the best one; None for none.
    """

    final_weights: str | None


@runtime_checkable
class Predicts(Protocol):
    """A task with predictions of its own, such as generated text or images."""

    def predict(self, options: Mapping[str, Any], data_module: Any, run_dir: Path) -> None:
        """Predict for ``python predict.py``: print, or write files.

        One process calls it, on one device, with the weights of the checkpoint, in evaluation mode
        and without gradients.

        Args:
            options: The group ``predict`` of the configuration, as a plain dictionary.
            data_module: Built from the checkpoint's configuration; `setup` was not called.
            run_dir: Where files go.
        """
