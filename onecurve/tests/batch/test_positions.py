"""Wherever a checkpoint is written, the run that resumes from it is the rest of one run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from conftest import one_of_a_kind
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from several_fits import Saves, quiet_trainer
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Sampler, TensorDataset

import onecurve

EPOCHS, BATCHES = 4, 4


class Events(L.LightningModule):
    """Keeps what happens: rows, rates, draws, step numbers of loggers, the hooks of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[Any, ...]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        step = self.trainer.fit_loop.epoch_loop._batches_that_stepped
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.seen.append(("train", self.current_epoch, batch_idx, step, batch[0].tolist(), rate))
        return (self.weight * batch[0]).mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        drawn = torch.rand(()).item()
        self.log("loss", drawn)
        self.seen.append(("val", self.current_epoch, batch_idx, self.global_step, drawn))

    def on_train_epoch_start(self) -> None:
        self.seen.append(("begins", self.current_epoch))

    def on_train_epoch_end(self) -> None:
        self.seen.append(("ends", self.current_epoch))

    def configure_optimizers(self) -> Any:
        assert self.trainer.estimated_stepping_batches  # asks for the loaders early
        optimizer = torch.optim.SGD(self.parameters(), 0.01)
        waits: Any = ReduceLROnPlateau(optimizer, patience=0, threshold=1.0, factor=0.5)
        plateau = {"scheduler": waits, "monitor": "loss", "strict": False}
        return {"optimizer": optimizer, "lr_scheduler": plateau}


class Notes(Saves):
    """Saves in a hook of epoch 1, and notes how much had happened."""

    def __init__(self, file: Path, hook: str, batch: int | None = None) -> None:
        super().__init__(file, hook, 1, batch)

    def save(self, trainer: L.Trainer, *_: Any, **__: Any) -> None:
        happened = len(trainer.lightning_module.seen)  # type: ignore[arg-type]
        if not self.is_done:
            super().save(trainer)
            self.happened = happened


def fitted(
    resume: Path | None = None,
    *callbacks: L.Callback,
    strategy: Callable[[], Any] = onecurve.Single,
    kind: type[Events] = Events,
    loader: Any = None,
    **options: Any,
) -> list[tuple[Any, ...]]:
    rows = TensorDataset(torch.arange(2.0 * BATCHES))
    loader = loader or DataLoader(rows, 2, shuffle=True)
    torch.manual_seed(1)
    options = {"max_epochs": EPOCHS, "num_sanity_val_steps": 0, **options}
    stops = EarlyStopping("loss", patience=99, strict=False)
    trainer = quiet_trainer(strategy(), callbacks=[stops, *callbacks], **options)
    val = DataLoader(TensorDataset(torch.arange(4.0)), 2)
    task = kind()
    trainer.fit(task, loader, val, ckpt_path=resume)
    return [*task.seen, ("waited", stops.wait_count)]


def trained(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [event for event in events if event[0] == "train"]


OPTIONS: dict[str, dict[str, Any]] = {
    "at the end": {},
    "inside": {"val_check_interval": 2},
    "every other": {"check_val_every_n_epoch": 3},
    "none": {"limit_val_batches": 0},
    "accumulated": {"val_check_interval": 2, "accumulate_grad_batches": 2},
    "steps": {"val_check_interval": 2, "max_steps": EPOCHS * BATCHES},
}
HOOKS = {
    "a step": ("on_train_batch_end", 0),
    "a step before a validation": ("on_train_batch_end", 1),
    "the last step": ("on_train_batch_end", BATCHES - 1),
    "before a validation": ("on_validation_start", None),
    "inside a validation": ("on_validation_batch_end", None),
    "after a validation": ("on_validation_end", None),
    "the end of an epoch": ("on_train_epoch_end", None),
    "the start of an epoch": ("on_train_epoch_start", None),
}
# What had happened, and happens again, because it is not complete.
AGAIN = {
    "inside a validation": 1,
    # The task's hook comes after a callback's.
    "the end of an epoch": -1,
}


ALL = [(name, where) for name in OPTIONS for where in HOOKS]
# What validates at another time meets what is not in a validation alike.
FEW = ("a step", "the last step", "the start of an epoch")
KEPT = [cell for cell in ALL if cell[0] in ("inside", "accumulated") or cell[1] in FEW]


@pytest.mark.parametrize(("name", "where"), one_of_a_kind(ALL, kept=KEPT))
def test_a_resumed_run_is_the_rest_of_one_run(name: str, where: str, tmp_path: Path) -> None:
    saves = Notes(tmp_path / "one.ckpt", *HOOKS[where])
    whole = fitted(None, saves, **OPTIONS[name])
    assert len(whole) > EPOCHS * BATCHES
    if not saves.file.exists():
        assert "validation" in where
        assert not [each for each in whole if each[:2] == ("val", 1)]
        return
    rest = fitted(saves.file, **OPTIONS[name])
    assert rest == whole[saves.happened - AGAIN.get(where, 0) :]


class Stops(L.Callback):
    """Stops after a batch of epoch 1, as a Timer does."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if (trainer.current_epoch, trainer.fit_loop.batch_idx) == (1, self.batch):
            trainer.should_stop = True


@pytest.mark.parametrize("hook", ["on_validation_end", "on_train_epoch_end", "on_train_end"])
@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("interval", [1.0, 2])
def test_a_run_that_was_stopped_trains_on_as_one_that_was_not(
    hook: str, batch: int, interval: float, tmp_path: Path
) -> None:
    """Lightning validates before it stops, which draws; a run that goes on does not."""
    file, whole = tmp_path / "stopped.ckpt", fitted(val_check_interval=interval)

    saves = Saves(file, hook, 2 if hook == "on_train_end" else 1)
    stopped = fitted(None, Stops(batch), saves, val_check_interval=interval)
    assert stopped[-2] == ("ends", 1)
    rest = fitted(file, val_check_interval=interval)[:-1]  # early stopping counts the validation
    assert rest == whole[-len(rest) - 1 : -1]
    assert rest[0][:3] == ("train", 1, batch + 1)


@pytest.mark.parametrize("where", ["a step", "a step before a validation", "after a validation"])
def test_plain_lightning_counts_on_and_its_files_go_on(where: str, tmp_path: Path) -> None:
    """It validates first where that was due, and has as many steps, if not the same samples."""

    def counted(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [each[:4] for each in events if each[0] != "waited"]

    options = OPTIONS["inside"]
    ours, theirs = (Notes(tmp_path / f"{name}.ckpt", *HOOKS[where]) for name in ("ours", "plain"))
    whole = fitted(None, ours, **options)
    rest = fitted(ours.file, strategy=lambda: "auto", **options)
    assert counted(rest) == counted(whole[ours.happened :])

    fitted(None, theirs, strategy=lambda: "auto", **options)
    assert "resume" not in torch.load(theirs.file, weights_only=True)
    plain = fitted(theirs.file, strategy=lambda: "auto", **options)
    assert counted(fitted(theirs.file, **options)) == counted(plain)


class ByEpoch(Sampler[int]):
    """Begins with the sample of the epoch's number."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        return iter([(self.epoch + number) % 8 for number in range(8)])


def test_a_sampler_that_is_told_the_epoch_is_told_before_workers_read(tmp_path: Path) -> None:
    rows = TensorDataset(torch.arange(8.0))
    options = {"sampler": ByEpoch(), "num_workers": 1, "batch_size": 8}
    saves = Notes(tmp_path / "one.ckpt", "on_train_epoch_end")
    fitted(None, saves, loader=DataLoader(rows, **options))  # type: ignore[arg-type]
    rest = fitted(saves.file, loader=DataLoader(rows, **options))  # type: ignore[arg-type]
    assert [each[4][0] for each in trained(rest)] == [2, 3]


def test_loaders_that_are_reloaded_may_draw_otherwise_as_a_line_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: Any = {"reload_dataloaders_every_n_epochs": 1}
    options["loader"] = DataLoader(TensorDataset(torch.arange(4.0)), 2)
    saves = Notes(tmp_path / "one.ckpt", "on_train_epoch_end")
    whole = trained(fitted(None, saves, **options))
    assert "resume: " not in capsys.readouterr().out
    assert trained(fitted(saves.file, **options)) == whole[4:]
    said = capsys.readouterr().out
    assert said.count("resume: trainer.reload_dataloaders_every_n_epochs=1: the loaders are ") == 1


def two_loaders(lengths: tuple[int, int], has_generator: bool) -> dict[str, DataLoader[Any]]:
    return {
        name: DataLoader(
            TensorDataset(torch.arange(2.0 * batches)), 2, shuffle=True,
            generator=torch.Generator().manual_seed(ord(name)) if has_generator else None,
        )
        for name, batches in zip("ab", lengths, strict=True)
    }  # fmt: skip


class OfTwo(Events):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        torch.rand(())
        return super().training_step([torch.cat([batch["a"][0], batch["b"][0]])], batch_idx)


@pytest.mark.parametrize(("lengths", "has_generator"), [((4, 4), True), ((4, 2), False)])
@pytest.mark.parametrize("step", [2, 3])
def test_several_loaders_resume_in_the_first_epoch(
    lengths: tuple[int, int], has_generator: bool, step: int, tmp_path: Path
) -> None:
    """A shorter one starts again in an order that follows on what steps have drawn."""
    made = partial(two_loaders, lengths, has_generator)
    options: Any = {"kind": OfTwo, "max_epochs": 2, "limit_val_batches": 0}
    saves = Saves(tmp_path / "first.ckpt", "on_train_batch_end", 0, step - 1)
    whole = fitted(None, saves, loader=made(), **options)
    assert fitted(saves.file, loader=made(), **options) == whole[step + 1 :]


def test_what_is_saved_after_a_validation_that_was_due_is_complete(tmp_path: Path) -> None:
    made, saves = (
        onecurve.ExponentialMovingAverage,
        Notes(tmp_path / "one.ckpt", *HOOKS["the last step"]),
    )
    fitted(None, made(), saves, max_epochs=2)
    keeps = ModelCheckpoint(tmp_path, "{epoch}", "loss")
    fitted(saves.file, made(), keeps, max_epochs=2, enable_checkpointing=True)
    saved = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)
    assert saved["callbacks"]["ExponentialMovingAverage"] == {"count": 2 * BATCHES}
