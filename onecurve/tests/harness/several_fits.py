"""Many short fits, in this process or in ranks: what each was refused for, or what it logged."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import warm_ranks
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import onecurve
from onecurve.errors import user_error_behind
from onecurve.machine import unchanged_environment

# What a Trainer leaves in the environment of its process.
LIGHTNING = ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")
Case = tuple[Callable[[], LightningModule], Any, dict[str, Any]]
"""A module, a strategy, and options of the Trainer. Or data=, which makes another loader;
is_alone=, where not every rank may be refused, so that no case can follow."""


STRATEGIES: dict[str, Any] = {
    strategy.name: strategy
    for strategy in (onecurve.DDP, onecurve.FSDP, onecurve.Tensor, onecurve.Pipeline)
}
"""Those of ranks."""


class Small(LightningModule):
    """A regression that keeps the rules; others change one thing about it."""

    logged: Mapping[str, bool] = {}  # options of `log`

    def __init__(self) -> None:
        super().__init__()
        self.net = self.network()

    def network(self) -> nn.Module:
        layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(8, 2))

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, targets)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = self.of(batch)
        self.log("train/loss", loss, **self.logged)
        return loss

    def of(self, batch: Any) -> Tensor:
        """The loss of a step."""
        return self.loss(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Losses(Callback):
    """Keeps what a module logs in every step."""

    def __init__(self) -> None:
        self.logged: dict[str, list[float]] = {}

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        for name, value in trainer.callback_metrics.items():
            self.logged.setdefault(name, []).append(value.item())


class Saves(Callback):
    """Saves a checkpoint once, in a hook; in an epoch, and after a batch of it (-1: the last)."""

    def __init__(
        self,
        file: Path,
        hook: str = "on_train_end",
        epoch: int | None = None,
        batch: int | None = None,
    ) -> None:
        self.file, self.epoch, self.batch, self.is_done = file, epoch, batch, False
        setattr(self, hook, self.save)

    def save(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        at = trainer.num_training_batches - 1 if self.batch == -1 else self.batch
        is_here = self.epoch in (None, trainer.current_epoch)
        is_here &= at in (None, trainer.fit_loop.batch_idx)
        if is_here and not self.is_done and not trainer.sanity_checking:
            self.is_done = True
            trainer.save_checkpoint(self.file)


class Written(BasePredictionWriter):
    """Keeps the indices and predictions of each batch, and in the end the indices of all."""

    def __init__(self) -> None:
        super().__init__("batch_and_epoch")
        self.seen: list[Any] = []

    def write_on_batch_end(self, *args: Any) -> None:
        prediction, indices = args[2:4]
        self.seen.append((indices, [] if prediction is None else prediction))

    def write_on_epoch_end(self, *args: Any) -> None:
        self.seen.append(args[3])


def quiet_trainer(strategy: Any = "auto", devices: int = 1, **options: Any) -> Trainer:
    """On the CPU; it prints and writes nothing that is not asked for."""
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {**dict.fromkeys(quiet, False), **options}
    return Trainer(accelerator="cpu", strategy=strategy, devices=devices, **options)


def data(samples: int = 22) -> DataLoader[Any]:
    """Batches of 8, 8 and 6."""
    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 6, generator=drawn)
    targets = torch.stack([inputs.sin().sum(1), inputs.square().sum(1)], 1)
    return DataLoader(TensorDataset(inputs, targets), batch_size=8)


def fits(cases: dict[Any, Case]) -> dict[Any, str | dict[str, list[float]]]:
    """Train a module in each case, in float64 for 2 epochs unless it says otherwise.

    Returns:
        For each case the line that refused it, or what it logged, step by step.
    """
    results: dict[Any, Any] = {}
    for name, (module, strategy, options) in cases.items():
        options = dict(options)
        is_alone = options.pop("is_alone", False)
        loader = options.pop("data", data)()
        seed_everything(1, workers=True, verbose=False)  # as the commands do
        losses = Losses()
        callbacks = [losses, *options.pop("callbacks", [])]
        usual = {"devices": 2, "max_epochs": 2, "precision": "64-true", "callbacks": callbacks}
        trainer = quiet_trainer(strategy, **{**usual, **options})
        try:
            trainer.fit(module(), loader)
            results[name] = losses.logged
        except Exception as error:
            refusal = user_error_behind(error)
            if refusal is None or is_alone:
                raise
            results[name] = str(refusal)
    return results


def alone(cases: dict[Any, Case]) -> dict[Any, Any]:
    """What the modules of cases log under `Single`."""
    single: dict[Any, Case] = {
        name: (module, onecurve.Single(), {**options, "devices": 1})
        for name, (module, _, options) in cases.items()
    }
    with unchanged_environment(LIGHTNING):
        return fits(single)


def fits_in_ranks(cases: dict[Any, Case], processes: int = 2) -> dict[Any, Any]:
    """All cases in ranks that are there already."""
    found: dict[Any, Any] = warm_ranks.run(fits, cases, processes=processes)
    return found
