"""Writes displays to TensorBoard and Weights & Biases."""

from collections.abc import Callable
from html import escape
from importlib import import_module
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger


class TensorBoardWriter:
    """Displays of TensorBoard, through the logger that writes the scalars."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def show(self, kind: str, name: str, value: Any, step: int) -> None:
        """Write a "figure", a "histogram", an "image", which is uint8 (C, H, W), or a "text"."""
        if kind == "text":  # indented: Markdown leaves it as it is
            value = "    " + value.replace("\n", "\n    ")
        self.logger.show(lambda writer: getattr(writer, f"add_{kind}")(name, value, step))


class WandbWriter:
    """Displays of Weights & Biases, in the run of the logger that writes the scalars."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger
        wandb: Any = import_module("wandb")
        self.kinds: dict[str, Callable[[Any], Any]] = {
            "figure": wandb.Image,
            "histogram": lambda values: wandb.Histogram(values.flatten().tolist()),
            "image": lambda image: wandb.Image(image.permute(1, 2, 0).cpu().numpy()),
            "text": lambda text: wandb.Html(f"<pre>{escape(text)}</pre>"),
        }

    def show(self, kind: str, name: str, value: Any, step: int) -> None:
        """Write what `TensorBoardWriter.show` writes."""
        shown = self.kinds[kind](value)
        self.logger.experiment.log({name: shown, "trainer/global_step": step})


WRITERS: dict[str, tuple[type[Any], type[Any]]] = {
    "tensorboard": (TensorBoardLogger, TensorBoardWriter),
    "wandb": (WandbLogger, WandbWriter),
}


def find_writer(trainer: Trainer, name: str) -> TensorBoardWriter | WandbWriter | None:
    """The writer for a logger of the run: "tensorboard" or "wandb"; None if it has none."""
    kind, writer = WRITERS[name]
    return next((writer(logger) for logger in trainer.loggers if isinstance(logger, kind)), None)
