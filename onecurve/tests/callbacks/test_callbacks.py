"""Callbacks: none changes what is trained but by what it is for, and each says what it does."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import (
    ALL,
    EPOCH,
    FLOAT64,
    ROOT,
    ROUNDING,
    TINY,
    Cli,
    column,
    largest_difference,
    one_of_a_kind,
)
from lightning.pytorch import Callback
from PIL import Image
from processes import Command, in_terminal
from scripted import scripted


def test_a_long_epoch_gets_lines_in_between(train: Cli) -> None:
    out = train("callbacks=[progress]", "callbacks.progress.seconds_between_lines=0").out
    assert len([line for line in out.splitlines() if line.startswith("epoch 1/2")]) > 10


@pytest.mark.slow
def test_one_rank_speaks_a_line_an_epoch(tmp_path: Path) -> None:
    arguments = [*TINY, "callbacks=[progress,model_summary]", "strategy=ddp"]
    out, err = Command(tmp_path, "train.py", *arguments).communicate()
    _, last = [line for line in out.splitlines() if line.startswith("epoch ")]
    assert re.match(
        r"epoch 2/2  step 22/22  train/loss [\d.]+  val/loss [\d.]+  val/acc [\d.]+  "
        r"[\d,]+ samples/s  0:00:00 left",
        last,
    )
    assert "\x1b[" not in out
    assert out.count("of them trainable") == 1
    assert out.count("Training finished") == 1
    assert err == ""


BARS = r"Epoch \d/\d|Testing"


@pytest.mark.slow
def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    """80 columns, as a person sees them."""
    typed = [*TINY, "callbacks=[progress]", scripted("'a[b]'", 7)]
    status, shown = in_terminal(tmp_path, *typed, COLUMNS="80", TERM="xterm-256color")
    assert status == 0, shown
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    # A bar an epoch stays, and one of the test.
    assert {"Epoch 0/1", "Epoch 1/1", "Testing"} <= {*re.findall(BARS, text)}
    flat = re.sub(r"\s+", " ", text)
    for name in ("train/loss: 0", "val/loss: 0", "val/acc: 0", "a[b]: 7.000", "left: 0:00:0"):
        assert name in flat, name
    assert re.search(r"samples/s: [1-9]", flat)
    assert "11/11" in text
    assert "Training finished" in text


def test_early_stopping_goes_by_the_newest_validation(train: Cli, cli: Cli, warm: Cli) -> None:
    """Patience runs out in epoch 2 of 4, and the metric improves again in epoch 3."""
    outcome = train(
        "callbacks=[checkpoint,early_stopping]", scripted("val/script", 1, 2, 0.9, 0.8),
        "monitor=val/script", "mode=min", "callbacks.early_stopping.patience=1", "test=false",
        "trainer.min_epochs=3", "trainer.max_epochs=9", "trainer.limit_train_batches=1",
    )  # fmt: skip
    run, metrics = outcome.run, outcome.metrics
    assert metrics["global_step"] == 5
    # Why stands on the screen and in metrics.json; what is resumed is over, and says so.
    why = "early_stopping: Monitored metric val/script did not improve in the last"
    assert metrics["stopped"].startswith(why)
    assert f"Stopped early by {metrics['stopped']}\n" in outcome.out
    # Over, until patience is more.
    again = cli("train.py", f"resume={run}")
    assert "resume: the run is over: early_stopping: Monitored metric val/script did " in again.out
    assert "add callbacks.early_stopping.patience=2, or ~callbacks.early_stopping" in again.out
    assert json.loads((run / "metrics.json").read_text())["global_step"] == 5
    warm("train.py", f"resume={run}", "callbacks.early_stopping.patience=2")
    assert json.loads((run / "metrics.json").read_text())["global_step"] == 6


LOGS = "nothing logs a metric of that name; Classification logs train/loss, val/acc, val/loss"
STOP = "callbacks.early_stopping"
# What is typed, how the line begins, and what it proposes.
FIRST_EPOCH = [
    ("monitor=val/map", f"monitor=val/map: {LOGS}", "monitor=val/acc mode=max"),
    (
        f"callbacks=[early_stopping] {STOP}.monitor=val/map strategy=ddp",
        f"{STOP}.monitor=val/map: {LOGS}",
        f"{STOP}.monitor=val/acc {STOP}.mode=max",
    ),
]


@pytest.mark.parametrize(("typed", "line", "proposed"), FIRST_EPOCH)
def test_the_first_epoch_decides_whether_a_metric_is_logged_and_is_not_lost(
    cli: Cli, warm: Cli, typed: str, line: str, proposed: str
) -> None:
    outcome = cli("train.py", *TINY, *typed.split())
    assert outcome.status == 2
    assert "Traceback" not in outcome.err
    end = outcome.err.splitlines()[-1]
    assert end.startswith(f"error: {line}")
    assert end.endswith(f"; use {proposed}; what was trained is saved: resume=last {proposed}")
    again = warm("train.py", "resume=last", *proposed.split())
    assert "from last.ckpt" in again.out
    assert len(column(outcome.run, "train/loss")) == 2 * EPOCH


class Slow(Callback):
    """Steps that take a while."""

    def on_train_batch_end(self, *args: object) -> None:
        time.sleep(0.05)


def test_a_timer_stops_a_run_that_can_be_continued(train: Cli, warm: Cli) -> None:
    slow = ("callbacks.timer.duration=00:00:00:01", "+callbacks.slow._target_=test_callbacks.Slow")
    stopped = train("callbacks=[checkpoint,timer]", "test=false", "trainer.max_epochs=3", *slow)
    assert re.match(r"timer: \d+ s of training are over", stopped.metrics["stopped"])
    assert 0 < len(column(stopped.run, "train/loss")) < 3 * EPOCH
    again = warm("train.py", "resume=last")
    assert "add callbacks.timer.duration=DD:HH:MM:SS, with more time" in again.out
    warm("train.py", "resume=last", "callbacks.timer.duration=00:01:00:00", "~callbacks.slow")
    assert len(column(stopped.run, "train/loss")) == 3 * EPOCH


def test_more_gradients_to_a_step_from_epoch_to_epoch(train: Cli) -> None:
    """Its curve is a row of tests/parity/cases.py."""
    whole = train(
        "callbacks=[gradient_accumulation,lr_monitor]", "trainer.max_epochs=3", "test=false",
        "callbacks.gradient_accumulation.scheduling={0:1,1:2,2:5}", "data.batch_size=32",
        "callbacks.lr_monitor.logging_interval=step",
    )  # fmt: skip
    assert whole.metrics["global_step"] == 21 + 11 + 5
    # The scheduler comes to its end: it knows how many steps there are.
    assert column(whole.run, "lr-AdamW")[-1] < 0.01 * column(whole.run, "lr-AdamW")[0]


def test_throughput_is_logged_and_summed_up(train: Cli) -> None:
    outcome = train(
        "callbacks=[checkpoint,throughput,device_stats]", "callbacks.throughput.every_n_steps=5",
        "callbacks.device_stats.cpu_stats=true", "trainer.log_every_n_steps=5",
        "+task.example_shape=[2,1,8,8]",
    )  # fmt: skip
    speeds = column(outcome.run, "throughput/samples_per_second")
    assert len(speeds) == 4
    assert min(speeds) > 0
    metrics = outcome.metrics
    # A product and a sum for each weight of the mlp, forward and twice that backward.
    state = torch.load(outcome.run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    weights = sum(value.numel() for name, value in state.items() if name.endswith("weight"))
    speed = metrics["samples_per_second_in_training"]
    assert metrics["flops_per_second"] == pytest.approx(speed * 3 * 2 * weights)
    assert 2 * EPOCH * 64 / speed < metrics["seconds"] * 1.2
    assert "samples per second in training" in outcome.out
    assert "DeviceStatsMonitor." in (outcome.run / "metrics.csv").read_text().splitlines()[0]


# A search for the batch size trains with what it finds: see the last test.
CALLBACKS = sorted(
    path.stem
    for path in (ROOT / "configs/callbacks").glob("*.yaml")
    if path.stem != "batch_size_finder"
)
SHORT = ("trainer.max_epochs=1", "test=false")
FEW = ("trainer.limit_train_batches=4", "trainer.limit_val_batches=1")
# What a callback needs beside its name to do something in four steps.
SET = {
    "device_stats": ("callbacks.device_stats.cpu_stats=true",),
    "gradient_accumulation": ("callbacks.gradient_accumulation.scheduling={0:1,4:2}",),
    "lr_finder": ("callbacks.lr_finder.steps=20",),
    "swa": ("callbacks.swa.start=0.5",),
    # A figure costs more than the run.
    "tensorboard": ("callbacks.tensorboard.images=4",),
    "throughput": ("callbacks.throughput.every_n_steps=2",),
    "wandb": ("callbacks.wandb.images=4",),
}
WITHOUT: dict[str, list[float]] = {}


# Every fourth is in the same run; each is in one that is not long.
CELLS = [(strategy, CALLBACKS[start::4]) for strategy in ALL for start in range(4)]
QUICK = ("single", "ddp", "fsdp", "pipeline")
KEPT = [(strategy, CALLBACKS[start::4]) for start, strategy in enumerate(QUICK)]


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "callbacks"), one_of_a_kind(CELLS, kept=KEPT), ids=str)
def test_every_callback_under_every_strategy(
    train: Cli, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, strategy: str, callbacks: list[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    options = [*ALL[strategy], *SHORT, *FEW]
    if strategy not in WITHOUT:
        WITHOUT[strategy] = column(train(*options, "callbacks=[]").run, "train/loss")
    options += [f"callbacks=[{','.join(callbacks)}]"]
    outcome = train(*options, *[option for name in callbacks for option in SET.get(name, ())])
    assert "Traceback" not in outcome.err
    curve = column(outcome.run, "train/loss")
    assert len(curve) == 4
    # Training is what it is without. A rank draws nothing, so it is so to the last bit.
    assert largest_difference(curve, WITHOUT[strategy]) == 0.0


@pytest.mark.compares
@pytest.mark.parametrize("name", one_of_a_kind(["single", "pipeline"], kept=["single"]))
def test_a_learning_rate_is_suggested(train: Cli, name: str) -> None:
    """Afterwards the run is the one without, as if nothing had been tried."""
    options = (*ALL[name], *SHORT, FLOAT64)
    finder = ("callbacks=[lr_finder]", "callbacks.lr_finder.steps=40")
    with_finder, without = train(*options, *finder), train(*options, "callbacks=[]")
    found = with_finder.metrics["suggested_lr"]
    assert 1e-4 < found < 0.5
    said = f"lr_finder: optimizer.lr={found:.3g} ({with_finder.run}/lr_finder.png)\n"
    if name == "single":  # what warm ranks print is not read
        assert said in with_finder.out
    assert Image.open(with_finder.run / "lr_finder.png").width > 300
    ours, theirs = (column(outcome.run, "train/loss") for outcome in (with_finder, without))
    assert largest_difference(ours, theirs) <= ROUNDING


def test_the_largest_batch_is_found_and_trained_with(train: Cli) -> None:
    limits = ("callbacks.batch_size_finder.init_val=32", "callbacks.batch_size_finder.max_val=128")
    found = train("callbacks=[batch_size_finder]", *limits)
    assert found.metrics["global_step"] == 2 * 6
