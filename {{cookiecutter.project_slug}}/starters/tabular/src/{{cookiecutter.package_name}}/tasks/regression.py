"""Regression: one number per row."""

from collections import OrderedDict
from typing import Any, Unpack

import torch
from matplotlib.figure import Figure
from onecurve.figures import new_figure
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError, R2Score

from ..models.units import Restore, Standardize
from .baselines import baselines
from .task import Parts, Task

Batch = tuple[Tensor, Tensor]
MOST_POINTS = 2000


class Regression(Task):
    """Trains a network with the squared error, and measures R² and the mean absolute error.

    The network sees features that are standardised by the training rows, and answers in standard
    deviations of the target; both are undone by layers of its own, so that outputs, targets and the
    absolute error are in the target's units. The loss is in standard deviations, squared.

    Args:
        in_features: Numbers in a row.
        parts: The network, which maps features (N, F) to numbers (N, 1), and how it is optimized:
            see `Parts`.
    """

    target_std: Tensor

    def __init__(self, in_features: int, **parts: Unpack[Parts]) -> None:
        super().__init__(**parts)
        between = self.network
        # Names in a checkpoint are those of the network.
        layers = between._modules if isinstance(between, nn.Sequential) else {"inner": between}
        self.network = nn.Sequential(
            OrderedDict(standardize=Standardize(in_features), **layers, restore=Restore(1))
        )
        self.register_buffer("target_std", torch.ones(()))
        self.val_r2, self.test_r2 = R2Score(), R2Score()
        # Its sum would be in float32, whatever the precision of the task.
        self.val_mae = MeanAbsoluteError().set_dtype(torch.float64)
        self.test_mae = MeanAbsoluteError().set_dtype(torch.float64)
        self.seen: list[Tensor] = []

    def setup(self, stage: str) -> None:
        """Compute the units from the training rows at the start of training."""
        if stage == "fit":
            features, targets = self.trainer.datamodule.rows("train")  # type: ignore[attr-defined]
            self.network.get_submodule("standardize").measure(features)  # type: ignore[operator]
            self.network.get_submodule("restore").measure(targets[:, None])  # type: ignore[operator]
            self.target_std.copy_(self.network.get_buffer("restore.std")[0])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of outputs (N,) and targets (N,), in standard deviations."""
        return ((outputs - targets) / self.target_std).square().mean()

    def on_validation_epoch_start(self) -> None:
        """Start collecting points for the figure."""
        self.seen = []

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss, R² and mean absolute error over the whole validation set."""
        outputs, targets = self.answer(batch)
        self.val_r2.update(outputs, targets)
        self.val_mae.update(outputs, targets)
        self.log("val/loss", self.loss(outputs, targets), batch_size=len(targets), prog_bar=True)
        self.log("val/r2", self.val_r2, prog_bar=True)
        self.log("val/mae", self.val_mae)
        self.seen.append(torch.stack([targets, outputs], dim=1).float().cpu())

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss, R² and mean absolute error over the whole test set."""
        outputs, targets = self.answer(batch)
        self.test_r2.update(outputs, targets)
        self.test_mae.update(outputs, targets)
        self.log("test/loss", self.loss(outputs, targets), batch_size=len(targets))
        self.log("test/r2", self.test_r2)
        self.log("test/mae", self.test_mae)

    def on_test_epoch_end(self) -> None:
        """Also log the baselines: the mean of the training rows, and least squares."""
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        self.log_dict(baselines(data.rows("train"), data.rows("test")))

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Predictions (N,) in the target's units."""
        return {"prediction": self.answer(batch)[0]}

    def displays(self) -> dict[str, Figure]:
        """Points of the last validation, predicted against true."""
        shares = self.trainer.strategy.gather_from_replicas(self.seen)  # type: ignore[attr-defined]
        points = torch.cat([part for share in shares for part in share])[:MOST_POINTS]
        figure = new_figure(5, 5)
        axes = figure.subplots()
        axes.scatter(points[:, 0].numpy(), points[:, 1].numpy(), s=8)
        ends = [points.min().item(), points.max().item()]
        axes.plot(ends, ends, color="grey", linewidth=1)
        axes.set_xlabel("true")
        axes.set_ylabel("predicted")
        return {"predicted_against_true": figure}
