"""What a resumed epoch counts is what the whole one would have."""

from functools import partial
from pathlib import Path

import lightning as L
import pytest
import torch
import warm_ranks
from several_fits import Saves, quiet_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import CatMetric, MaxMetric, MeanMetric

import onecurve

STRATEGIES = {"single": (onecurve.Single, 1), "ddp": (onecurve.DDP, 2)}


class Counts(L.LightningModule):
    """Logs sums, means and metrics of an epoch; some in its first batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.mean, self.most, self.all = MeanMetric(), MaxMetric(), CatMetric()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        rows = batch[0]
        log = partial(self.log, on_step=False, on_epoch=True)
        log("mean of rows", rows.mean())
        log("sum", rows.sum(), reduce_fx="sum")
        log("max", rows.max(), reduce_fx="max")
        if batch_idx == 0:
            log("first", rows.mean())
        for name in ("mean", "most"):
            getattr(self, name).update(rows)
            log(name, getattr(self, name))
        self.all.update(rows)
        return self.net(rows).mean()  # type: ignore[no-any-return]

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("seen", batch[0].mean())

    def on_train_epoch_end(self) -> None:
        self.log("rows", self.all.compute().sum())
        self.all.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.0)


def counted(
    name: str, resume: Path | None, epochs: int = 1, *callbacks: L.Callback, steps: int = -1
) -> dict[str, float]:
    """What the last epoch has logged."""
    strategy, devices = STRATEGIES[name]
    torch.manual_seed(1)
    trainer = quiet_trainer(
        strategy(), devices, max_epochs=epochs, max_steps=steps, callbacks=list(callbacks),
        precision="64-true",
    )  # fmt: skip
    rows = torch.tensor([9.0, 9, 7, 9, 8, 0, 3, 0, 0, 1], dtype=torch.float64)[:, None]
    loader = DataLoader(TensorDataset(rows), 3)
    trainer.fit(Counts(), loader, loader if steps < 0 else None, ckpt_path=resume)
    return {key: v.item() for key, v in trainer.callback_metrics.items() if key != "seen"}


@pytest.mark.parametrize(
    ("hook", "batch"), [("on_train_batch_end", 1), ("on_validation_end", None)]
)
def test_an_epoch_counts_what_it_had_counted(tmp_path: Path, hook: str, batch: int | None) -> None:
    """In one process to the bit; two ranks what one had counted, as in the next epoch, and back."""
    one, two = tmp_path / "one.ckpt", tmp_path / "two.ckpt"
    whole = counted("single", None, 1, Saves(one, hook, 0, batch))
    assert whole["rows"] == 46
    assert counted("single", one) == whole
    for epochs in (1, 2):
        expected = pytest.approx(counted("single", None, epochs), rel=1e-11)
        assert warm_ranks.run(counted, "ddp", one, epochs) == expected
    warm_ranks.run(counted, "ddp", None, 1, Saves(two, hook, 0, batch))
    assert counted("single", two) == pytest.approx(whole, rel=1e-11)


def test_an_epoch_that_max_steps_ended_counts_on(tmp_path: Path) -> None:
    counted("single", None, 1, Saves(tmp_path / "two.ckpt"), steps=2)
    assert counted("single", tmp_path / "two.ckpt") == counted("single", None)
