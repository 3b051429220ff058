"""`onecurve.parity` and its command: what is equal, and what a difference is said to come from."""

import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import warm_ranks
from conftest import Cli, one_of_a_kind
from lightning.pytorch import LightningDataModule
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils.data import DataLoader
from zoo import data
from zoo.tasks import Normalized, Plain

import onecurve
from onecurve.errors import in_python
from onecurve.launch import agent
from onecurve.parity import result
from onecurve.strategies.callback_api import CallbackAPI
from onecurve.testing import assert_parity


@pytest.fixture(autouse=True)
def _warm_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are there already."""
    monkeypatch.setattr(agent, "start_ranks", warm_ranks.start_ranks)


class Remembers(Plain):
    """What a step leaves for the next one is in no checkpoint."""

    last = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        last, self.last = self.last, float(loss.detach())
        return loss * (1 + last)


class KnowsItsStrategy(Plain):
    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return super().loss(outputs, targets) * len(type(self.trainer.strategy).__name__)


class RatedByDevices(Plain):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01 * self.trainer.num_devices)


class NoisyValidation(Plain):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step([batch[0] + torch.randn_like(batch[0]), batch[1]], batch_idx)


class SumsOfNormalized(Normalized):
    """A sum that is not exactly as much larger, because BatchNorm sees a rank's share.

    It draws what does not matter, as Wav2Vec2 does.
    """

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        torch.rand(3)
        return (outputs - targets).square().sum()


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    return DataLoader(data.pairs(), 8), data.validation()


def compared(make_task: Callable[[], Any], make_data: Any, strategy: Any, **options: Any) -> Any:
    return onecurve.parity(make_task, make_data, strategy=strategy, accelerator="cpu", **options)


NOISY = partial(DataLoader, data.Augmented(), batch_size=8)
# Others are in the table of tests/parity. The first kind says more than the others that hold.
APART: dict[str, tuple[Any, ...]] = {
    "a sum, about": (SumsOfNormalized, loaders, onecurve.DDP, result.SUM, result.BATCHNORM),
    "rates": (RatedByDevices, loaders, onecurve.DDP, result.RATES),
    "noise of the data set": (Plain, NOISY, onecurve.DDP, result.SAMPLES),
    "unknown": (KnowsItsStrategy, loaders, onecurve.Single, result.UNKNOWN),
    "validation": (NoisyValidation, loaders, onecurve.DDP, result.DRAWS),
}


@pytest.mark.compares
@pytest.mark.parametrize("name", one_of_a_kind(APART, kept={*APART} - {"validation"}))
def test_a_difference_has_its_likely_kind(name: str) -> None:
    task, made, strategy, kind, *others = APART[name]
    found = compared(task, made, strategy())
    assert not found.equal
    assert found.kinds == [kind, *others], found.table()
    assert f"Likely {kind}: {in_python(result.TO_DO[kind])}." in found.table()


def test_so_they_are_where_layers_are_sharded() -> None:
    options = {"accumulate_grad_batches": 4, "limit_train_batches": 1.0, "max_epochs": 4}
    found = compared(Plain, partial(data.plain, 5), onecurve.Tensor(), **options)
    assert found.kinds == [result.ACCUMULATED, result.PLAN], found.table()


class Asks(Plain):
    """Looks at the strategy that it trains under, and uses what ours have beside Lightning's."""

    seen: ClassVar[list[tuple[Any, Tensor]]] = []

    def on_train_start(self) -> None:
        strategy: Any = self.trainer.strategy
        self.seen.append((strategy, strategy.all_samples(torch.ones(2, 1))))


def test_it_leaves_the_process_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    def state() -> tuple[Any, ...]:
        drawn: Any = np.random.get_state(legacy=False)
        numbers = drawn["state"]["key"].tolist(), torch.get_rng_state().tolist()
        return *numbers, random.getstate(), dict(os.environ)

    before = state()
    capfd.readouterr()
    found = compared(Asks, loaders, onecurve.Single())
    assert "".join(capfd.readouterr()) == ""
    assert str(found) == repr(found) == found.table()
    assert [row.quantity for row in found.rows] == [
        *("weights at the start", "loss", "gradient norm", "train/loss", "val/loss"),
        *("weights at the end", "resumed after step 6"),
    ]
    with pytest.raises(AssertionError, match=f"{result.RESUME}: put what a step keeps"):
        assert_parity(Remembers, loaders, strategy=onecurve.Single(), accelerator="cpu")
    assert state() == before
    # The plain run is plain.
    strategy, rows = Asks.seen[-1]
    assert isinstance(strategy, SingleDeviceStrategy)
    assert not isinstance(strategy, CallbackAPI)
    assert rows.tolist() == [[1.0], [1.0]]


class Data(LightningDataModule):
    """Takes whatever keys a configuration has."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.train_dataloader, self.val_dataloader = data.plain, data.validation


CHOSEN = (
    *("data._target_=test_parity_command.Data", "parity.steps=4", "trainer.accelerator=cpu"),
    *("~task.num_classes", "~task.monitor", "~task.mode"),
)


@pytest.mark.parametrize(
    ("task", "strategy", "status"),
    [("Plain", "single", 0), ("Remembers", "single", 1), ("Normalized", "ddp", 0)],
)
def test_the_command(cli: Cli, task: str, strategy: str, status: int) -> None:
    chosen = (*CHOSEN, f"task._target_=test_parity_command.{task}", f"strategy={strategy}")
    outcome = cli("onecurve", "parity", *chosen)
    assert outcome.status == status, outcome.err
    table = (outcome.run / "parity.txt").read_text()
    if strategy == "single":  # what a rank prints goes where the server of ranks began to
        assert table in outcome.out
    assert outcome.metrics == {"status": "finished", "strategy": strategy, "equal": status == 0}
    if status:
        line = f"strategy=single: differs from a plain Trainer: {result.RESUME}"
        assert outcome.err.splitlines()[-1] == line
    else:
        assert table.endswith(" beside a plain Trainer, in float64: equal\n")
