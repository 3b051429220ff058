"""The callbacks that look for a learning rate and a batch size before training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ALL, FLOAT64, ROUNDING, Cli, column, largest_difference, one_of_a_kind
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import BatchSizeFinder
from PIL import Image
from several_fits import Losses, Small, data, quiet_trainer
from torch.utils.data import DataLoader

from onecurve import Single

PLAIN = (FLOAT64, "callbacks=[]", "trainer.max_epochs=1", "test=false")
FINDER = (*PLAIN, "callbacks=[lr_finder]", "callbacks.lr_finder.steps=40")


@pytest.mark.compares
@pytest.mark.parametrize(
    "name", one_of_a_kind(["single", "pipeline", "shard x tensor"], kept=["single"])
)
def test_a_learning_rate_is_suggested(train: Cli, name: str) -> None:
    """Afterwards the run is the one without, as if nothing had been tried."""
    with_finder, without = train(*ALL[name], *FINDER), train(*ALL[name], *PLAIN)
    found = with_finder.metrics["suggested_lr"]
    assert 1e-4 < found < 0.5
    said = f"lr_finder: optimizer.lr={found:.3g} ({with_finder.run}/lr_finder.png)\n"
    if name == "single":  # what warm ranks print is not read
        assert said in with_finder.out
    assert Image.open(with_finder.run / "lr_finder.png").width > 300
    ours, theirs = (column(outcome.run, "train/loss") for outcome in (with_finder, without))
    assert largest_difference(ours, theirs) <= ROUNDING


class Batches(LightningDataModule):
    batch_size = 8

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(data(40).dataset, self.batch_size, shuffle=True)


def test_the_largest_batch_is_that_of_a_plain_trainer(tmp_path: Path) -> None:
    """And so is the run, which trains with it."""
    losses = []
    for strategy in ("auto", Single()):
        torch.manual_seed(3)
        batches, loss = Batches(), Losses()
        callbacks: Any = [BatchSizeFinder(init_val=4, max_val=16), loss]
        options: Any = {"max_epochs": 2, "default_root_dir": tmp_path}
        quiet_trainer(strategy, callbacks=callbacks, **options).fit(Small(), datamodule=batches)
        losses.append(loss.logged["train/loss"])
        assert batches.batch_size == 16
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2 * 3
