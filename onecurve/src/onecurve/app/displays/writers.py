"""Writes displays to TensorBoard and Weights & Biases, with a method for each kind."""

from html import escape
from importlib import import_module
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from matplotlib.figure import Figure
from torch import Tensor


class TensorBoardWriter:
    """Displays of TensorBoard, through the logger that writes the scalars."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def figure(self, name: str, figure: Figure, step: int) -> None:
        self._add("figure", name, figure, step)

    def histogram(self, name: str, values: Tensor, step: int) -> None:
        self._add("histogram", name, values, step)

    def image(self, name: str, image: Tensor, step: int) -> None:
        """One image, uint8 (C, H, W)."""
        self._add("image", name, image, step)

    def text(self, name: str, text: str, step: int = 0) -> None:
        """A text, indented: Markdown leaves it as it is."""
        self._add("text", name, "    " + text.replace("\n", "\n    "), step)

    def _add(self, kind: str, *values: Any, **options: Any) -> None:
        self.logger.show(lambda writer: getattr(writer, f"add_{kind}")(*values, **options))


class WandbWriter:
    """Displays of Weights & Biases, in the run of the logger that writes the scalars."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger
        self.wandb = import_module("wandb")

    def figure(self, name: str, figure: Figure, step: int) -> None:
        self._log(name, self.wandb.Image(figure), step)

    def histogram(self, name: str, values: Tensor, step: int) -> None:
        self._log(name, self.wandb.Histogram(values.flatten().tolist()), step)

    def image(self, name: str, image: Tensor, step: int) -> None:
        """One image, uint8 (C, H, W)."""
        self._log(name, self.wandb.Image(image.permute(1, 2, 0).cpu().numpy()), step)

    def text(self, name: str, text: str, step: int = 0) -> None:
        self._log(name, self.wandb.Html(f"<pre>{escape(text)}</pre>"), step)

    def _log(self, name: str, value: Any, step: int) -> None:
        self.logger.experiment.log({name: value, "trainer/global_step": step})


WRITERS: dict[str, tuple[type[Any], type[Any]]] = {
    "tensorboard": (TensorBoardLogger, TensorBoardWriter),
    "wandb": (WandbLogger, WandbWriter),
}


def find_writer(trainer: Trainer, name: str) -> TensorBoardWriter | WandbWriter | None:
    """The writer for a logger of the run: "tensorboard" or "wandb"; None if it has none."""
    kind, writer = WRITERS[name]
    return next((writer(logger) for logger in trainer.loggers if isinstance(logger, kind)), None)
