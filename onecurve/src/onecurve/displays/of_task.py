"""What a task shows of itself: samples of what it makes, for example."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from ..batch.random import draw_from, global_seed, kept_state
from ..errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@runtime_checkable
class HasDisplays(Protocol):
    """A task with something to show. To have the method is to take part."""

    def displays(self) -> "Mapping[str, str | Tensor | Figure]":
        """What to show, by name: a text, an image (uint8, (C, H, W)) or a figure of matplotlib's.

        Every rank calls this at the end of a validation, in evaluation mode and without gradients,
        and it may call `self(...)`; the first rank shows what it returned there. What it draws at
        random is alike on all ranks, and changes nothing of what training draws.
        """


def show_task(writer: Any, trainer: Trainer, task: HasDisplays) -> None:
    """Ask a task what it shows, and show it. All ranks call this; the first has a writer.

    Raises:
        UserError: If it returns what cannot be shown.
    """
    step = trainer.global_step
    with torch.no_grad(), kept_state():
        draw_from(global_seed(), step)
        shown = task.displays()
    for name, value in shown.items():
        kind = _kind(value)
        if kind is None:
            raise UserError(
                f"{type(task).__name__}.displays: {name!r} is {_described(value)}; "
                "return a str, a uint8 tensor (C, H, W) or a figure of matplotlib's"
            )
        if writer:
            getattr(writer, kind)(name, value, step)


def _kind(value: Any) -> str | None:
    """The method of a writer that shows it; None if there is none."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, Tensor):
        is_image = value.dtype == torch.uint8 and value.ndim == 3 and value.shape[0] in (1, 3)
        return "image" if is_image else None
    from matplotlib.figure import Figure

    return "figure" if isinstance(value, Figure) else None


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}"
    return f"of type {type(value).__name__}"
