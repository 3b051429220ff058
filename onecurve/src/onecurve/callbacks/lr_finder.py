"""Suggests a learning rate by a range test: a short run in which the learning rate rises.

Source: L. N. Smith, "Cyclical learning rates for training neural networks", 2017,
https://arxiv.org/abs/1506.01186, section 3.3.
"""

import math
from collections.abc import Sequence

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateFinder

from ..arguments import configured_by
from ..errors import say
from ..figures import new_figure
from .options import LearningRateRangeTestOptions

SKIPPED_AT_THE_START = 5


class LearningRateRangeTest(LearningRateFinder):
    """Lightning's range test before training, with a figure and a suggestion that are shown.

    It suggests where the loss falls fastest over the logarithm of the learning rate. Lightning's
    own uses the learning rate itself, and so mostly suggests one near the smallest.
    """

    @configured_by(LearningRateRangeTestOptions, "callbacks.lr_finder")
    def __init__(self, options: LearningRateRangeTestOptions) -> None:
        super().__init__(options.min_lr, options.max_lr, options.steps, update_attr=False)
        self.file = options.file
        self.final_facts: dict[str, float] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.fast_dev_run or trainer.ckpt_path:  # type: ignore[attr-defined]
            return
        epochs = trainer.fit_loop.max_epochs
        # A short run has fewer steps than the test needs.
        trainer.fit_loop.max_epochs = -1
        self.lr_find(trainer, pl_module)
        trainer.fit_loop.max_epochs = epochs
        assert self.optimal_lr is not None
        rates, losses = self.optimal_lr.results["lr"], self.optimal_lr.results["loss"]
        suggested = suggestion(rates, losses)
        self.final_facts = {"suggested_lr": float(f"{suggested:.3g}")} if suggested else {}
        if not trainer.is_global_zero:
            return
        figure = new_figure(6, 4)
        axes = figure.subplots()
        axes.plot(rates[: len(losses)], losses[: len(rates)])
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss (smoothed)")
        axes.axvline(suggested or self._min_lr, color="firebrick")
        figure.savefig(self.file, dpi=100)
        if suggested:
            print(f"lr_finder: optimizer.lr={suggested:.3g} ({self.file})", flush=True)
        else:
            say(
                f"lr_finder: the loss falls nowhere between callbacks.lr_finder.min_lr="
                f"{self._min_lr:g} and max_lr={self._max_lr:g}: nothing to suggest; see {self.file}"
            )


def suggestion(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Where the loss falls fastest over the logarithm of the learning rate; None if nowhere."""
    points = [
        (math.log(rate), loss)
        for rate, loss in zip(rates, losses, strict=False)
        if math.isfinite(loss)
    ][SKIPPED_AT_THE_START:]
    slopes = [
        ((after[1] - before[1]) / (after[0] - before[0]), math.exp(here[0]))
        for before, here, after in zip(points, points[1:], points[2:], strict=False)
    ]
    slope, rate = min(slopes, default=(0.0, 0.0))
    return rate if slope < 0 else None
