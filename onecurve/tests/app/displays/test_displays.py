"""TensorBoard shows the same under every strategy, each display once; so does Weights & Biases."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import EPOCH, FLOAT64, ROUNDING, TINY, Cli, column, largest_difference
from events import Events
from matplotlib.figure import Figure
from small.task import Classification
from torch import Tensor, nn

OWN = "task._target_=test_displays."
SHOWN = (
    "callbacks=[checkpoint,tensorboard]",
    "callbacks.tensorboard.histograms_every_n_steps=20",
    "callbacks.tensorboard.images=9",
    "optimizer.lr=3e-3",
)
STEPS = 2 * EPOCH


def numbers(events: Events) -> list[tuple[float, ...]]:
    """What is shown as numbers, of which TensorBoard keeps seven digits."""
    tags = sorted(events.tags["histograms"])
    values = [event.histogram_value for tag in tags for event in events.read.Histograms(tag)]
    return [
        *((each.num, each.min, each.max, each.sum) for each in values),
        *((value,) for value in events.scalars("gradient_norm")),
    ]


@pytest.mark.compares
def test_every_display_is_there_once(trained: Cli) -> None:
    events = Events(trained("strategy=pipeline", *SHOWN, FLOAT64).run)
    histograms = events.tags["histograms"]
    once = Counter(events.tags["images"] + events.tags["tensors"] + histograms)
    assert set(once.values()) == {1}
    assert events.steps("images") == [0]
    assert events.steps("confusion_matrix") == [STEPS]
    assert events.steps("gradient_norm") == [0, 10, 20]
    for tag in ("images", "confusion_matrix"):
        (image,) = events.read.Images(tag)
        assert image.width > 300
        assert image.height > 150
    assert events.hparams().items() >= {("strategy", "pipeline"), ("data.batch_size", 64)}
    # Gradients and parameters of the whole network, twice: at steps 0 and 20.
    for tag in histograms:
        assert [event.step for event in events.read.Histograms(tag)] == [0, 20]
    kinds = Counter(tag.partition("/")[0] for tag in histograms)
    assert kinds["parameters"] == kinds["gradients"] > 2
    expected = Events(trained("strategy=single", *SHOWN, FLOAT64).run)
    for ours, theirs in zip(numbers(events), numbers(expected), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-6)


class Autoencoder(Classification):
    """Its outputs are images; it draws at random what it shows, and asks the network."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "network": nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))})

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = (self(batch[0]) - batch[0]).square().mean()
        self.log("val/loss" if self.trainer.validating else "train/loss", loss)
        return loss

    validation_step = training_step  # type: ignore[assignment]
    test_step = None  # type: ignore[assignment]

    def displays(self) -> dict[str, Any]:
        answer = self(torch.rand(2, 1, 8, 8, dtype=self.dtype)).argmax()
        assert not self.training
        assert not torch.is_grad_enabled()
        picture = torch.randint(256, (3, 4, 5), dtype=torch.uint8)
        return {"answer": f"<{answer.item()}>", "drawn": picture, "empty": Figure()}


AUTOENCODER = ("callbacks=[tensorboard]", FLOAT64, "test=false", f"{OWN}Autoencoder")


def test_a_task_shows_what_it_returns_and_what_needs_classes_is_left_out(trained: Cli) -> None:
    run = trained("strategy=ddp", *AUTOENCODER).run
    events = Events(run)
    for tag in ("answer/text_summary", "drawn", "empty"):
        assert events.steps(tag) == [EPOCH, STEPS], tag
    off = "callbacks.tensorboard.task_every_n_epochs=0"
    without = trained("strategy=single", *AUTOENCODER, off)
    assert {*Events(without.run).tags["images"]} == {"images"}
    said = [line for line in without.err.splitlines() if line.startswith("callbacks.tensorboard")]
    assert len(said) == 1
    assert "left out: it needs outputs (N, C)" in said[0]
    # Nothing that training draws has changed.
    ours, theirs = (column(each, "train/loss") for each in (run, without.run))
    assert largest_difference(ours, theirs) <= ROUNDING


class ShowsNumbers(Classification):
    def displays(self) -> dict[str, Any]:
        return {"answer": torch.zeros(3)}


def test_what_a_task_cannot_show_is_named(cli: Cli) -> None:
    outcome = cli("train.py", *TINY, "callbacks=[tensorboard]", f"{OWN}ShowsNumbers")
    assert outcome.status != 0
    line = "ShowsNumbers.displays: 'answer' is a tensor (3,) of torch.float32; return"
    assert line in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.long
def test_every_job_of_a_sweep_is_a_row_and_a_run_of_its_own(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In TensorBoard's table of hyper-parameters, and for Weights & Biases."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    outcome = cli(
        "train.py", "-m", "strategy=single,ddp", "optimizer.lr=1e-2", *TINY,
        "trainer.max_epochs=1", "callbacks=[checkpoint,tensorboard,wandb]", "logger=[csv,wandb]",
        "trainer.limit_train_batches=2",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    ids = set()
    for run, strategy in zip(outcome.runs, ("single", "ddp"), strict=True):
        assert Events(run).hparams().items() >= {("strategy", strategy), ("optimizer.lr", 0.01)}
        (folder,) = run.glob("wandb/offline-run-*")
        ids.add(folder.name.split("-")[3])
        pictures = {path.name.split("_")[0] for path in folder.glob("files/media/images/*.png")}
        assert pictures == {"images", "confusion"}
    assert len(ids) == 2
