"""Tasks as others write them, beside the table of tests/parity: what is said, files."""

from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING
from lightning.pytorch import Trainer
from others import WIDTH, AddsNoise, Samples, Stranger, loaders
from several_fits import fits, quiet_trainer
from sharded_networks import fused
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

import onecurve
from onecurve.errors import UserError


def said_in_a_fit() -> str:
    """What rank 0 prints while it trains a task whose step draws noise."""
    with redirect_stderr(StringIO()) as said:
        fits({"": (AddsNoise, onecurve.DDP(), {"data": partial(DataLoader, Samples(), 8)})})
    return said.getvalue()


def test_a_step_that_draws_random_numbers_is_told_once() -> None:
    line = "strategy=ddp: training_step of AddsNoise draws random numbers, different ones on each"
    assert warm_ranks.run(said_in_a_fit).count(line) == 1


def fit_of_the_other_package(trains: str) -> None:
    import pytorch_lightning as other

    class Task(other.LightningModule):
        pass

    trainer = other.Trainer if trains == "pytorch_lightning" else Trainer
    trainer(accelerator="cpu", devices=2, strategy=onecurve.DDP(), logger=False).fit(Task())


@pytest.mark.parametrize("trains", ["lightning", "pytorch_lightning"])
def test_modules_of_the_other_lightning_package_are_rejected(trains: str) -> None:
    with pytest.raises(UserError, match=r"write import lightning\.pytorch as pl instead"):
        onecurve.launch(fit_of_the_other_package, trains, devices=2)


def saved(path: Path, strategy: Any, epochs: int, resumed: Path | None = None) -> None:
    """Save what ranks, or one process, have trained."""
    devices = 2 if isinstance(strategy, onecurve.Tensor) else 1
    trainer = quiet_trainer(strategy, devices, precision="64-true", max_epochs=epochs)
    torch.manual_seed(0)
    trainer.fit(OfOneProjection(), loaders()[0], ckpt_path=resumed, weights_only=False)
    trainer.save_checkpoint(path)


class OfOneProjection(Stranger):
    """Its attentions hold queries, keys and values in one weight each, of several orders.

    It keeps a metric in its hyperparameters and in checkpoints, as pytorch-forecasting's models do.
    """

    def __init__(self) -> None:
        ends = partial(nn.Linear, WIDTH, 16), partial(nn.Linear, 16, WIDTH)
        super().__init__(lambda: nn.Sequential(ends[0](), *fused()[:3], ends[1]()).double())
        self.metric = MeanMetric()
        self.save_hyperparameters({"width": WIDTH, "deep": {"metrics": [self.metric]}})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["special"] = {"metric": self.metric}

    def configure_optimizers(self) -> Any:
        # The bias of keys has no gradient but for rounding, by whose size AdamW divides.
        return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-3)


def test_a_checkpoint_of_ranks_is_that_of_one_process(tmp_path: Path) -> None:
    """Rows in their own order, no group of ranks; one goes on where two were, and two where one."""
    plain, half, single, two = (tmp_path / name for name in ("plain", "half", "single", "two"))
    saved(plain, "auto", 3)
    warm_ranks.run(saved, half, onecurve.Tensor(), 1)
    saved(single, onecurve.Single(), 2, half)
    warm_ranks.run(saved, two, onecurve.Tensor(), 3, single)
    expected, found = (torch.load(file, weights_only=False) for file in (plain, two))
    assert [*found["state_dict"]] == [*expected["state_dict"]]
    torch.testing.assert_close(found["state_dict"], expected["state_dict"], rtol=0, atol=ROUNDING)
    of_adam, expected_of_adam = (each["optimizer_states"][0]["state"] for each in (found, expected))
    torch.testing.assert_close(of_adam, expected_of_adam, rtol=0, atol=ROUNDING)
    assert found["special"]["metric"].process_group is None
    assert found["hyper_parameters"] == {"width": WIDTH}
