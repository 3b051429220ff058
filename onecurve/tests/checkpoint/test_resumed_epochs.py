"""What a resumed epoch reads, trains and counts is what the whole one would have."""

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import warm_ranks
from lightning.pytorch.callbacks import BackboneFinetuning
from several_fits import Saves, quiet_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, TensorDataset
from torchmetrics import CatMetric, MaxMetric, MeanMetric

import onecurve

STRATEGIES = {"single": (onecurve.Single, 1), "ddp": (onecurve.DDP, 2)}


class Sees(L.LightningModule):
    """Keeps the rows of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[str, int, list[float]]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.seen.append(("train", self.current_epoch, batch[0].tolist()))
        return (self.weight * batch[0]).mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.seen.append(("val", self.current_epoch, batch[0].tolist()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        assert self.trainer.estimated_stepping_batches  # asks for the loaders early
        return torch.optim.SGD(self.parameters(), 0.0)


class ByEpoch(Sampler[int]):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Any:
        return iter([(self.epoch + number) % 4 for number in range(4)])


def seen(data: Any, resume: Path | None, *callbacks: L.Callback, **options: Any) -> list[Any]:
    torch.manual_seed(1)
    sanity = 0 if resume else 2
    trainer = quiet_trainer(
        onecurve.Single(), max_epochs=4, callbacks=list(callbacks), num_sanity_val_steps=sanity,
        **options,
    )  # fmt: skip
    task = Sees()
    trainer.fit(task, data, ckpt_path=resume)
    return task.seen


def test_a_sampler_that_is_told_the_epoch_is_told_before_workers_read(tmp_path: Path) -> None:
    file = tmp_path / "one.ckpt"
    rows = TensorDataset(torch.arange(4.0))
    loader = partial(DataLoader, rows, batch_size=2, sampler=ByEpoch(), num_workers=1)
    seen(loader(), None, Saves(file, "on_train_epoch_end", 0))
    assert [rows[0] for _, _, rows in seen(loader(), file)] == [1, 3, 2, 0, 3, 1]


def test_loaders_that_are_reloaded_may_draw_otherwise_as_a_line_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, options = tmp_path / "one.ckpt", {"reload_dataloaders_every_n_epochs": 1}
    rows = TensorDataset(torch.arange(4.0))
    loader = DataLoader(rows, 2)
    whole = seen(loader, None, Saves(file, "on_train_epoch_end", 0), **options)
    assert "resume: " not in capsys.readouterr().out
    assert seen(loader, file, **options) == whole[2:]
    said = capsys.readouterr().out
    assert said.count("resume: trainer.reload_dataloaders_every_n_epochs=1: the loaders are ") == 1


class Frozen(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.head = nn.Linear(3, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.head(self.backbone(batch[0])).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], 0.1)


def test_a_backbone_that_was_unfrozen_is_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fitted(epochs: int, resume: Path | None = None) -> L.Trainer:
        unfreezes = BackboneFinetuning(1, train_bn=False)
        trainer = quiet_trainer(onecurve.Single(), max_epochs=epochs, callbacks=[unfreezes])
        torch.manual_seed(1)
        trainer.fit(Frozen(), DataLoader(TensorDataset(torch.randn(8, 3)), 4), ckpt_path=resume)
        return trainer

    # Saved by the script, after the fit.
    fitted(3).save_checkpoint(tmp_path / "three.ckpt")
    rest = fitted(4, tmp_path / "three.ckpt").lightning_module.state_dict()
    whole = fitted(4).lightning_module.state_dict()
    assert all(torch.equal(rest[name], whole[name]) for name in whole)
    assert "resume: backbone.0.weight, backbone.0.bias: frozen or" in capsys.readouterr().out


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
    name: str,
    resume: Path | None,
    epochs: int = 1,
    *callbacks: L.Callback,
    steps: int = -1,
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
