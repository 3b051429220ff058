"""A module, its data and a Trainer as people have them, for tests of the library without Hydra."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, seed_everything
from several_fits import quiet_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH = 100, 16  # the last batch of an epoch is uneven
STEPS = 7
"""In an epoch."""


class Regression(LightningModule):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.save_hyperparameters()
        layers = [nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(width, 2))
        self.losses: list[float] = []
        self.validated: list[float] = []

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs)
        return outputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, targets)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss = self.loss(self(inputs), targets)
        self.log("train/loss", loss)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.losses.append(self.trainer.callback_metrics["train/loss"].item())

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val/loss", self.loss(self(inputs), targets), batch_size=len(targets))

    def on_validation_epoch_end(self) -> None:
        self.validated.append(self.trainer.callback_metrics["val/loss"].item())

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        outputs: Tensor = self(batch[0])
        return outputs

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def loader(shuffle: bool, batch: int = BATCH) -> DataLoader[Any]:
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 6, generator=drawn)
    targets = torch.stack([inputs.sin().sum(1), inputs.square().sum(1)], 1)
    return DataLoader(TensorDataset(inputs, targets), batch_size=batch, shuffle=shuffle)


def fit(
    strategy: Any,
    options: dict[str, Any] | None = None,
    *,
    shuffle: bool = False,
    batch: int = BATCH,
    callbacks: list[Callback] | None = None,
    resume: Path | None = None,
    save: Path | None = None,
) -> tuple[list[float], list[float]]:
    """Train in float64 with a plain Trainer; return the losses of every step and validation."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        seed_everything(1, verbose=False)
        module = Regression()
        usual = {"devices": 2, "max_epochs": 2, "callbacks": callbacks}
        trainer = quiet_trainer(strategy, **{**usual, **(options or {})})
        trainer.fit(module, loader(shuffle, batch), loader(False), ckpt_path=resume)
        if save:
            trainer.save_checkpoint(save)
    finally:
        torch.set_default_dtype(before)
    return module.losses, module.validated


def predict(strategy: Any, devices: int) -> list[list[Any]]:
    """What a fresh network predicts, batch by batch: this rank's share of each."""
    seed_everything(1, verbose=False)
    batches = quiet_trainer(strategy, devices=devices).predict(Regression(), loader(False))
    return [batch.tolist() for batch in batches or []]
