"""Speed, shares of time, and what the devices do."""

import csv
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ALL, EPOCH, Cli, column
from gpu_check.tasks import FEATURES, mlp
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from several_fits import quiet_trainer
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from onecurve import Single
from onecurve.callbacks.throughput import Throughput

SHARES = [f"throughput/{name}_share" for name in ("data", "step", "validation", "checkpoint")]


def header(run: Path) -> list[str]:
    with (run / "metrics.csv").open(newline="") as file:
        return next(csv.reader(file))


WATCHED = (
    "callbacks=[checkpoint,throughput,device_stats]", "callbacks.throughput.every_n_steps=5",
    "callbacks.device_stats.cpu_stats=true", "trainer.log_every_n_steps=5",
)  # fmt: skip


@pytest.mark.parametrize("name", ["single", "pipeline"])
def test_throughput_is_logged_and_summed_up(train: Cli, name: str) -> None:
    outcome = train(*ALL[name], *WATCHED, "+task.example_shape=[2,1,8,8]")
    lines = len(column(outcome.run, SHARES[0]))
    assert lines == 4
    for shares in zip(*(column(outcome.run, share) for share in SHARES), strict=True):
        assert sum(shares) == pytest.approx(1.0)
    # The first line is from before a validation or a checkpoint, the third from after.
    assert column(outcome.run, SHARES[2])[0] == column(outcome.run, SHARES[3])[0] == 0
    assert column(outcome.run, SHARES[2])[2] > 0 < column(outcome.run, SHARES[3])[2]

    metrics = outcome.metrics
    assert "peak_memory_mib" not in metrics  # on CPUs it would be that of torch
    # A product and a sum for each weight of the mlp, forward and twice that backward.
    state = torch.load(outcome.run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    weights = sum(value.numel() for name, value in state.items() if name.endswith("weight"))
    assert metrics["flops_per_second"] == pytest.approx(
        metrics["samples_per_second_in_training"] * 3 * 2 * weights
    )
    assert 2 * EPOCH * 64 / metrics["samples_per_second_in_training"] < metrics["seconds"] * 1.2
    if name == "single":
        assert "step share" in outcome.out
    assert any(name.startswith("DeviceStatsMonitor.") for name in header(outcome.run))


class Slowly(Callback):
    """A hook that takes its time, after each batch."""

    def on_train_batch_end(self, *_: Any) -> None:
        time.sleep(0.02)


class SlowData(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(0.005)
        return super().__getitem__(index)


class Told(DummyLogger):
    def __init__(self) -> None:
        super().__init__()
        self.shares: dict[str, float] = {}

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.shares |= {name: value for name, value in metrics.items() if name in SHARES}


@pytest.mark.parametrize(("data", "hooks"), [(SlowData, []), (TensorDataset, [Slowly()])])
def test_only_what_the_loader_takes_is_waiting_for_data(data: Any, hooks: list[Any]) -> None:
    """Not what follows a step: its hooks, and its loggers, which wait for a GPU."""
    told, callbacks = Told(), [Throughput(every_n_steps=8), *hooks]
    trainer = quiet_trainer(Single(), logger=told, max_epochs=1, callbacks=callbacks)
    trainer.fit(mlp(), DataLoader(data(torch.randn(64, FEATURES), torch.zeros(64).long()), 8))
    waited = told.shares["throughput/data_share"]
    assert waited > 0.6 if data is SlowData else waited < 0.2


class Fails(Callback):
    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.current_epoch == 1:
            raise RuntimeError("in the second epoch")


def test_the_trainer_is_left_as_it_was_found() -> None:
    """By a fit that ends, and by one that fails; the second would wrap what the first did."""
    trainer = quiet_trainer(Single(), max_epochs=1, callbacks=[Throughput(), Fails()])
    loader = DataLoader(TensorDataset(torch.randn(16, FEATURES), torch.zeros(16).long()), 8)
    for epochs in (1, 2):
        trainer.fit_loop.max_epochs = epochs
        with pytest.raises(RuntimeError, match="second") if epochs == 2 else nullcontext():
            trainer.fit(mlp(), loader)
        assert not {"start", "stop"} & vars(trainer.profiler).keys()
        assert "save_checkpoint" not in vars(trainer)
