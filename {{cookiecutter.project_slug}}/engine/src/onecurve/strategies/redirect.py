"""The one thing that a strategy changes about a task: what a call of `forward` does, for a step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule


@contextmanager
def forward_replaced(module: LightningModule, forward: Callable[..., Any]) -> Iterator[None]:
    """Let another function stand for ``module.forward`` meanwhile."""
    module.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.forward
