"""Wherever a checkpoint is written, the run that resumes from it is the rest of one run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import warm_ranks
from lightning.pytorch.callbacks import EarlyStopping
from several_fits import Saves, quiet_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import data

import onecurve

EPOCHS, BATCHES = 4, 4


class Events(L.LightningModule):
    """Keeps what happens: rows, draws, the step numbers of loggers, and the hooks of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seen: list[tuple[Any, ...]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        step = self.trainer.fit_loop.epoch_loop._batches_that_stepped
        self.seen.append(("train", self.current_epoch, batch_idx, step, batch[0].tolist()))
        return (self.weight * batch[0]).mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        drawn = torch.rand(()).item()
        self.log("loss", drawn)
        self.seen.append(("val", self.current_epoch, batch_idx, self.global_step, drawn))

    def on_train_epoch_start(self) -> None:
        self.seen.append(("begins", self.current_epoch))

    def on_train_epoch_end(self) -> None:
        self.seen.append(("ends", self.current_epoch))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["happened"] = len(self.seen)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        assert self.trainer.estimated_stepping_batches  # asks for the loaders early
        return torch.optim.SGD(self.parameters(), 0.01)


def rows() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(2.0 * BATCHES)), 2, shuffle=True)


def fitted(
    resume: Path | None = None,
    *callbacks: L.Callback,
    strategy: Callable[[], Any] = onecurve.Single,
    devices: int = 1,
    loader: Callable[[], Any] = rows,
    **options: Any,
) -> list[tuple[Any, ...]]:
    options = {"max_epochs": EPOCHS, "num_sanity_val_steps": 0, **options}
    stops = EarlyStopping("loss", patience=99, strict=False)
    trainer = quiet_trainer(strategy(), devices, callbacks=[stops, *callbacks], **options)
    val = DataLoader(TensorDataset(torch.arange(4.0)), 2)
    torch.manual_seed(1)
    one, train = Events(), loader()
    trainer.fit(one, train, val, ckpt_path=resume)
    return [*one.seen, ("waited", stops.wait_count)]


def after(file: Path, whole: list[tuple[Any, ...]], again: int = 0) -> list[tuple[Any, ...]]:
    """What happened after a checkpoint, and what is to happen again."""
    return whole[torch.load(file, weights_only=True)["happened"] - again :]


def trained(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [event for event in events if event[0] == "train"]


OPTIONS: dict[str, dict[str, Any]] = {
    "at the end": {},
    "inside": {"val_check_interval": 2},
    "every other": {"check_val_every_n_epoch": 2},
    "accumulated": {"val_check_interval": 2, "accumulate_grad_batches": 2},
    "steps": {"val_check_interval": 2, "max_steps": EPOCHS * BATCHES},
}
# Where in the second epoch.
HOOKS = {
    "a step": ("on_train_batch_end", 1, 0),
    "a step before a validation": ("on_train_batch_end", 1, 1),
    "the last step": ("on_train_batch_end", 1, BATCHES - 1),
    "before a validation": ("on_validation_start", 1),
    "inside a validation": ("on_validation_batch_end", 1),
    "after a validation": ("on_validation_end", 1),
    "the end of an epoch": ("on_train_epoch_end", 1),
    "the start of an epoch": ("on_train_epoch_start", 1),
}
# What had happened, and happens again; the hook of a task comes after a callback's.
AGAIN = {"inside a validation": 1, "the end of an epoch": -1}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("where", HOOKS)
def test_a_resumed_run_is_the_rest_of_one_run(
    name: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.ckpt"
    whole = fitted(None, Saves(file, *HOOKS[where]), **OPTIONS[name])
    assert len(whole) > EPOCHS * BATCHES
    assert fitted(file, **OPTIONS[name]) == after(file, whole, AGAIN.get(where, 0))
    line = "was written after 1 of 2 accumulated batches"
    assert (line in capsys.readouterr().out) == (name == "accumulated" and where == "a step")


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
def test_files_are_those_of_plain_lightning(where: str, tmp_path: Path) -> None:
    """It validates first where that was due, and has as many steps, if not the same samples."""
    plain = partial(fitted, strategy=lambda: "auto", **OPTIONS["inside"])
    ours = partial(fitted, **OPTIONS["inside"])
    file, of_plain = tmp_path / "ours.ckpt", tmp_path / "plain.ckpt"
    whole = ours(None, Saves(file, *HOOKS[where]))
    assert without_samples(plain(file)) == without_samples(after(file, whole))
    plain(None, Saves(of_plain, *HOOKS[where]))
    assert "resume" not in torch.load(of_plain, weights_only=True)
    assert without_samples(ours(of_plain)) == without_samples(plain(of_plain))


def without_samples(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [event[:4] for event in events[:-1]]


def streams_by_ranks(file: Path) -> list[Any]:
    """What two ranks train on: a whole run, the rest of that of one process, and of their own."""
    made = partial(fitted, strategy=onecurve.DDP, devices=2, loader=data.stream, max_epochs=2)
    of_one = trained(made(file))
    whole = made(None, Saves(file, "on_train_batch_end", 0, 1))
    return [trained(whole), of_one, trained(made(file))]


def test_a_stream_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, single = tmp_path / "one.ckpt", partial(fitted, loader=data.stream, max_epochs=2)
    whole = trained(single(None, Saves(file, "on_train_batch_end", 0, 1)))
    of_ranks, *rests = warm_ranks.run(streams_by_ranks, file)
    for rest in rests:
        assert rest == of_ranks[2:]
    assert trained(single(file)) == whole[2:]
    line = "resume: Stream cannot restore its position; 2 batches are read again and dropped"
    assert capsys.readouterr().out.count(line) == 1


def test_other_loaders_are_rejected_inside_an_epoch(tmp_path: Path) -> None:
    file = tmp_path / "one.ckpt"
    fitted(None, Saves(file, "on_train_batch_end", 1, 1))
    with pytest.raises(onecurve.UserError, match=r"with 1 training loaders, and there are 2; give"):
        fitted(file, loader=lambda: [rows(), rows()])
    with pytest.raises(onecurve.UserError, match=r"after \d+ samples in \d+ batches, which"):
        fitted(file, loader=lambda: DataLoader(rows().dataset, 3, shuffle=True))
