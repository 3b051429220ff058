"""strategy=pipeline: which modules and numbers it refuses, and its parts one by one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import (
    FLOAT64,
    ROUNDING,
    TINY,
    Cli,
    column,
    largest_difference,
    one_of_a_kind,
    run_directories,
)
from PIL import Image
from processes import Command
from small.task import Classification
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

import onecurve.strategies.pipeline.gradients as gradients
import onecurve.strategies.pipeline.limits as limits
import onecurve.strategies.pipeline.schedule as schedules


class WithoutOrder(Classification):
    """Holds its network in something that is no sequence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.network = nn.ModuleList(self.network)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.network:
            inputs = layer(inputs)
        return inputs


class ParameterOutside(Classification):
    """Says what its layers are, and has a parameter beside them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * self.temperature

    def layers(self) -> list[nn.Module]:
        return list(self.network)


class Tied(Classification):
    """Uses one weight in two layers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        layers = [nn.Linear(64, 64) for _ in range(4)]
        layers[3].weight = layers[0].weight
        self.network = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))


MODULES = {
    "WithoutOrder": ["no sequence of layers", "nn.Sequential", "layers()"],
    "ParameterOutside": ["temperature", "none of its layers"],
    "Tied": ["network.1 and network.4 share a parameter", "strategy.balance"],
}


@pytest.mark.parametrize("task", MODULES)
def test_a_module_that_breaks_a_rule_is_refused(cli: Cli, tmp_path: Path, task: str) -> None:
    own = ("strategy=pipeline", f"task._target_=test_pipeline.{task}")
    outcome = cli("train.py", *TINY, "callbacks=[]", *own)
    assert outcome.status == 2, outcome.err
    assert outcome.err.startswith("error: strategy=pipeline")
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert list(tmp_path.iterdir()) == []
    for words in MODULES[task]:
        assert words in outcome.err


def test_a_split_is_one_that_the_schedule_takes() -> None:
    """For every size of batch: equal parts, and a schedule that takes their number."""
    for name in limits.SCHEDULES:
        for ranks in (1, 2, 3, 4):
            for size in range(1, 40):
                schedule, count = limits.split(name, 4, ranks, size)
                assert size % count == 0
                assert limits.takes(schedule, count, ranks)
                assert schedule in (name, "gpipe")
                wanted = limits.nearest(name, size, ranks, 40)
                assert limits.takes(name, wanted, ranks)
    assert limits.split("1f1b", 4, 2, 50) == ("1f1b", 5)
    assert limits.split("1f1b", 4, 2, 64) == ("1f1b", 4)
    assert limits.split("1f1b", 4, 2, 47) == ("gpipe", 1)


def test_targets_are_cut_whatever_they_are() -> None:
    targets = {"label": torch.arange(6), "boxes": (torch.arange(12).view(6, 2), list("abcdef"))}
    parts = schedules.split_targets(targets, 3, 6)
    assert parts[1]["label"].tolist() == [2, 3]
    assert parts[2]["boxes"][0].tolist() == [[8, 9], [10, 11]]
    assert parts[0]["boxes"][1] == ["a", "b"]
    collated = schedules.split_targets([torch.arange(6), [torch.arange(6)]], 3, 6)
    assert [collated[1][0].tolist(), collated[1][1][0].tolist()] == [[2, 3], [2, 3]]


def test_a_deposit_multiplies_by_what_reaches_the_loss_and_keeps_what_was_there() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    weight.grad = torch.tensor([10.0, 10.0])
    stash = gradients.Stash([weight, frozen])
    with stash.collect():
        assert weight.grad is None
        (8 * weight.square().sum()).backward()
    assert weight.grad.tolist() == [10.0, 10.0]
    loss = stash.attach(torch.tensor(3.0), scale=8.0)
    assert loss.item() == 3.0
    (loss / 2).backward()
    assert weight.grad.tolist() == [11.0, 12.0]
    assert frozen.grad is None


@pytest.mark.compares
@pytest.mark.parametrize("schedule", one_of_a_kind(limits.available(), kept=["looped_bfs", "zbv"]))
def test_evaluation_is_that_of_single(trained: Cli, warm: Cli, schedule: str) -> None:
    """Forward only, in parts of any size: 250 samples in batches of 64, the last one of 58."""
    run = trained("trainer.max_epochs=1", FLOAT64).run
    command = ("evaluate.py", f"checkpoint={run}/checkpoints/best.ckpt", FLOAT64)
    single = warm(*command)
    pipeline = warm(*command, "strategy=pipeline", f"strategy.schedule={schedule}")
    for name in ("test/loss", "test/acc"):
        assert pipeline.metrics[name] == pytest.approx(single.metrics[name], rel=ROUNDING)


class TwoTensors(nn.Module):
    """Returns two tensors, one of them not contiguous."""

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        return vectors, (2 * vectors).view(len(vectors), 8, 8).transpose(1, 2)


class Together(nn.Module):
    """Takes two tensors, and changes one in place."""

    def forward(self, vectors: Tensor, squares: Tensor) -> Tensor:
        return vectors.relu_() + squares.reshape(len(vectors), 64).tanh()


def several_tensors(**_: Any) -> nn.Sequential:
    """A network between whose layers tuples of tensors pass."""
    first, last = nn.Linear(64, 64), nn.Linear(64, 10)
    return nn.Sequential(nn.Flatten(), first, TwoTensors(), Together(), nn.ReLU(inplace=True), last)


class SequentialOfTuples(Classification):
    """Passes tuples on, as nn.Sequential does not."""

    def layers(self) -> list[nn.Module]:
        return list(self.network)

    def forward(self, inputs: Any) -> Tensor:
        for layer in self.layers():
            inputs = layer(*inputs) if isinstance(inputs, tuple) else layer(inputs)
        return inputs


@pytest.mark.compares
def test_tuples_views_and_changes_in_place_may_stand_at_a_cut(train: Cli) -> None:
    task = ("task._target_=test_pipeline.SequentialOfTuples", "trainer.max_epochs=1")
    task += ("model._target_=test_pipeline.several_tensors", FLOAT64)
    single = column(train(*task).run, "train/loss")
    for balance in ("[3,3]", "[4,2]"):
        pipeline = train(*task, "strategy=pipeline", f"strategy.balance={balance}")
        assert largest_difference(single, column(pipeline.run, "train/loss")) <= ROUNDING, balance


@pytest.mark.slow
def test_a_run_says_how_the_network_is_cut(tmp_path: Path) -> None:
    """A table of stages, the idle time to expect, and a picture, in TensorBoard too."""
    # In a process of its own: what ranks print goes where their server's output went.
    options = ("strategy=pipeline", "logger=[csv,tensorboard]", "trainer.max_epochs=1")
    out, _ = Command(tmp_path, "train.py", *TINY, *options).communicate()
    for words in ("flatten … relu1 (3)", "33,280", "imbalance 1.", "4 micro-batches of 16"):
        assert words in out
    assert "predicted bubble" in out
    (run,) = run_directories(tmp_path)
    with Image.open(run / "pipeline.png") as picture:
        assert picture.width > picture.height > 100
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert "pipeline" in events.Tags()["images"]
