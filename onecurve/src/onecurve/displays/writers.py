"""Writes displays to TensorBoard and Weights & Biases, with a method for each kind."""

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import torch.nn.functional as F
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.tensorboard.summary import hparams

from .classification import precision_recall

LARGEST_SPRITE = 48
"""Height and width of an image in the projector; all of them are in one picture."""


class Writer:
    """A logger of the run, to which displays are written.

    Args:
        logger: That of the scalars.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger: Any = logger

    @property
    def goes_on(self) -> bool:
        """Whether a run is resumed, in which everything that is shown once was shown."""
        return bool(self.logger.goes_on)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of a step."""
        self.logger.log_metrics(values, step)


class TensorBoardWriter(Writer):
    """Displays of TensorBoard, through the logger that writes the scalars."""

    def figure(self, name: str, figure: Figure, step: int) -> None:
        self.logger.show(lambda writer: writer.add_figure(name, figure, step))

    def histogram(self, name: str, values: Tensor, step: int) -> None:
        self.logger.show(lambda writer: writer.add_histogram(name, values, step))

    def image(self, name: str, image: Tensor, step: int) -> None:
        """One image, uint8 (C, H, W)."""
        self.logger.show(lambda writer: writer.add_image(name, image, step))

    def text(self, name: str, text: str, step: int = 0) -> None:
        as_it_is = "    " + text.replace("\n", "\n    ")
        self.logger.show(lambda writer: writer.add_text(name, as_it_is, step))

    def graph(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """The modules and what passes between them."""
        self.logger.show(lambda writer: writer.add_graph(module, inputs))

    def charts(self, names: Mapping[str, Sequence[str]]) -> None:
        """Several scalars in one chart, in the tab "Custom scalars"."""
        layout = {title: ["Multiline", list(tags)] for title, tags in names.items()}
        self.logger.show(lambda writer: writer.add_custom_scalars({"by metric": layout}))

    def embedding(
        self, features: Tensor, labels: Sequence[str], images: Tensor | None, step: int
    ) -> None:
        """Features (N, D) for the projector, with labels and images (N, 3, H, W) in 0..1."""
        if images is not None and max(images.shape[2:]) > LARGEST_SPRITE:
            images = F.interpolate(images, size=LARGEST_SPRITE, mode="area")
        self.logger.show(
            lambda writer: writer.add_embedding(
                features, list(labels), images, step, tag="features"
            )
        )

    def precision_recall(self, counts: Tensor, class_names: Sequence[str], step: int) -> None:
        """A curve a class, from counts (T, C, 2, 2) by threshold, class, truth and prediction."""
        precision, recall = _precision_recall(counts)
        for index, name in enumerate(class_names):
            (tn, fp), (fn, tp) = counts[:, index].permute(1, 2, 0)
            tag = f"precision_recall/{name}"
            values = (tp, fp, tn, fn, precision[index], recall[index], step, len(counts))
            self.logger.show(partial(_pr_curve, tag, values))

    def hparams(self, overrides: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """A row of the tab "HParams": its metrics are the last values of the scalars."""
        for summary in hparams(dict(overrides), dict.fromkeys(metrics, 0.0)):  # type: ignore[no-untyped-call]
            self.logger.show(partial(_summary, summary))


def _precision_recall(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Both (C, T) from counts (T, C, 2, 2)."""
    true, false, missed = counts[..., 1, 1].T, counts[..., 0, 1].T, counts[..., 1, 0].T
    return true / (true + false).clamp(min=1), true / (true + missed).clamp(min=1)


def _pr_curve(tag: str, values: tuple[Any, ...], writer: Any) -> None:
    writer.add_pr_curve_raw(tag, *values)


def _summary(summary: Any, writer: Any) -> None:
    writer.file_writer.add_summary(summary)


class WandbWriter(Writer):
    """Displays of Weights & Biases, in the run of the logger that writes the scalars."""

    def figure(self, name: str, figure: Figure, step: int) -> None:
        import wandb

        self._log({name: wandb.Image(figure)}, step)

    def histogram(self, name: str, values: Tensor, step: int) -> None:
        import wandb

        self._log({name: wandb.Histogram(values.flatten().tolist())}, step)

    def image(self, name: str, image: Tensor, step: int) -> None:
        """One image, uint8 (C, H, W)."""
        import wandb

        self._log({name: wandb.Image(image.permute(1, 2, 0).cpu().numpy())}, step)

    def text(self, name: str, text: str, step: int = 0) -> None:
        import wandb

        self._log({name: wandb.Html(f"<pre>{escape(text)}</pre>")}, step)

    def precision_recall(self, counts: Tensor, class_names: Sequence[str], step: int) -> None:
        """As TensorBoard's, drawn here."""
        figure = precision_recall(*_precision_recall(counts), class_names)
        self.figure("precision_recall", figure, step)

    def _log(self, values: Mapping[str, Any], step: int) -> None:
        self.logger.experiment.log({**values, "trainer/global_step": step})


def find_writer(trainer: Trainer, name: str) -> Writer | None:
    """The writer for a logger of the run: "tensorboard" or "wandb"; None if it has none."""
    for logger in trainer.loggers:
        if name == "tensorboard" and isinstance(logger, TensorBoardLogger):
            return TensorBoardWriter(logger)
        if name == "wandb" and isinstance(logger, WandbLogger):
            return WandbWriter(logger)
    return None
