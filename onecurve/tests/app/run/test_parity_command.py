"""`onecurve.parity` and its command: what is equal, and what a difference is said to come from."""

import os
import random
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import warm_ranks
from conftest import Cli, one_of_a_kind
from lightning.pytorch import LightningDataModule
from lightning.pytorch.strategies import SingleDeviceStrategy
from several_fits import Small, data
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

import onecurve
from onecurve.errors import in_python
from onecurve.launch import agent
from onecurve.parity import result
from onecurve.strategies.callback_api import CallbackAPI
from onecurve.testing import assert_parity


class Plain(Small):
    """As somebody writes one who knows nothing of this library."""

    def __init__(self, layer: Any = nn.Tanh, monitor: str = "val", mode: str = "min") -> None:
        super().__init__()
        self.net[1] = layer()  # type: ignore[operator]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.of(batch)
        self.log("train", loss, on_step=True, on_epoch=True, batch_size=len(batch[1]))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss(self(batch[0]), batch[1]), batch_size=len(batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Remembers(Plain):
    """What a step leaves for the next one is in no checkpoint."""

    last = 0.0

    def of(self, batch: Any) -> Tensor:
        loss = super().of(batch)
        last, self.last = self.last, float(loss.detach())
        return loss * (1 + last)


class DrawnLate(Plain):
    def on_train_start(self) -> None:
        nn.init.constant_(self.net[0].bias, self.trainer.world_size)  # type: ignore[arg-type]


class KnowsItsStrategy(Plain):
    def of(self, batch: Any) -> Tensor:
        return super().of(batch) * len(type(self.trainer.strategy).__name__)


class WithBuffer(Plain):
    first = torch.zeros(())

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", self.first.clone())


class HasCenter(WithBuffer):
    """Beside its network, which trains alike, a buffer that moves by a rank's own samples."""

    def of(self, batch: Any) -> Tensor:
        self.buffer.add_(1.0 + 1e-5 * batch[0].mean())
        return super().of(batch)


class Queue(WithBuffer):
    """Compares with the outputs of earlier steps, as MoCo does."""

    first = torch.ones(16, 2)

    def of(self, batch: Any) -> Tensor:
        outputs = self(batch[0])
        loss = torch.logsumexp(outputs @ self.buffer.clone().T, 1).mean()
        self.buffer = torch.cat([outputs.detach(), self.buffer])[:16]
        return loss


class LogsItsQueue(Queue):
    """Logs one step before its loss differs."""

    def of(self, batch: Any) -> Tensor:
        self.log("largest", self(batch[0]).max())
        return super().of(batch)


class Codebook(WithBuffer):
    """Draws one of its own samples and moves it by the others, as a VQ-VAE does."""

    first = torch.zeros(6)

    def of(self, batch: Any) -> Tensor:
        if not self.global_step:
            self.buffer.copy_(batch[0][torch.randint(len(batch[0]), ())])
        self.buffer.lerp_(batch[0].mean(0), 0.1)
        return super().of(batch) + (self(batch[0]) - self(self.buffer)).square().mean()


class RatedByDevices(Plain):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01 * self.trainer.num_devices)


class NoisyValidation(Plain):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step([batch[0] + torch.randn_like(batch[0]), batch[1]], batch_idx)


class LogsItsLossCoarsely(Plain):
    """Under the name that parity has for what a step returns."""

    def of(self, batch: Any) -> Tensor:
        loss = super().of(batch)
        self.log("loss", loss.float(), batch_size=len(batch[1]))
        return loss


class ShakesItsGradients(Plain):
    """By less than what rounding makes of them in many steps, and from the first step on."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.net(inputs)
        return outputs + 3e-10 * torch.rand_like(outputs) * (outputs - outputs.detach())


class SumsOfNormalized(Plain):
    """A sum that is not exactly as much larger, because BatchNorm sees a rank's share.

    It draws what does not matter, as Wav2Vec2 does.
    """

    def __init__(self) -> None:
        super().__init__(partial(nn.BatchNorm1d, 8))

    def of(self, batch: Any) -> Tensor:
        torch.rand(3)
        return (self(batch[0]) - batch[1]).square().sum()


class NoisyStep(Plain):
    """Adds its noise to the batch."""

    def of(self, batch: Any) -> Tensor:
        batch[0].add_(torch.randn_like(batch[0]))
        return super().of(batch)


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    return data(30), data(11)


class Data(LightningDataModule):
    """Takes whatever keys a configuration has."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.train_dataloader, self.val_dataloader = partial(data, 30), partial(data, 11)


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(6) + index, torch.randn(2)


def noisy() -> DataLoader[Any]:
    return DataLoader(Noisy(), batch_size=8)


def fives() -> DataLoader[Any]:
    """Of which two ranks have three samples and two."""
    return DataLoader(data(30).dataset, batch_size=5)


class Turns(Sampler[int]):
    """Samples in an order that is another one each time that they are asked for."""

    asked = 0

    def __iter__(self) -> Iterator[int]:
        self.asked += 1
        return iter([(7 * self.asked + at) % 30 for at in range(30)])

    def __len__(self) -> int:
        return 30


def by_turns() -> DataLoader[Any]:
    return DataLoader(data(30).dataset, batch_size=6, sampler=Turns())


STRATEGIES = {
    "single": onecurve.Single,
    "dp": onecurve.DP,
    "ddp": onecurve.DDP,
    "fsdp": partial(onecurve.FSDP, wrap=["Linear"]),
    "tensor": onecurve.Tensor,
}


@pytest.fixture(autouse=True)
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "start_ranks", warm_ranks.start_ranks)


def test_a_sampler_of_ones_own_is_asked_as_often_as_by_a_plain_trainer() -> None:
    """An example of what enters the layers of a pipeline is not taken from it."""
    strategy = onecurve.Pipeline(microbatches=2)
    found = onecurve.parity(Plain, by_turns, strategy=strategy, accelerator="cpu", steps=4)
    apart = [row.quantity for row in found.rows if row.step is not None]
    assert apart == ["resumed after step 3"], found.table()  # it is asked again


# Others are in the table of tests/parity.
APART = {
    result.SUM + ", about": (SumsOfNormalized, loaders, "ddp"),
    result.RATES: (RatedByDevices, loaders, "ddp"),
    result.DIGITS + ", of a loss that is logged": (LogsItsLossCoarsely, fives, "ddp"),
    result.DRAWS + ", which are small": (ShakesItsGradients, loaders, "ddp"),
    result.DRAWS + ", in the batch": (NoisyStep, loaders, "ddp"),
    result.LATE_WEIGHTS: (DrawnLate, loaders, "ddp"),
    result.SAMPLES: (Plain, noisy, "ddp"),
    result.UNKNOWN: (KnowsItsStrategy, loaders, "single"),
    result.KEPT + ", logged before": (LogsItsQueue, loaders, "ddp"),
    result.KEPT + ", and drawn": (Codebook, loaders, "ddp"),
    result.KEPT + ", in a buffer that hardly differs": (HasCenter, fives, "fsdp"),
    result.DRAWS + ", in validation": (NoisyValidation, loaders, "ddp"),
}
# What holds as well.
OTHERS = {
    result.SUM + ", about": [result.BATCHNORM],
    result.KEPT + ", and drawn": [result.DRAWS],
}
QUICK = [result.SAMPLES, result.UNKNOWN, result.RATES, result.KEPT + ", and drawn"]
QUICK += [result.KEPT + ", logged before", result.SUM + ", about"]


@pytest.mark.compares
@pytest.mark.parametrize("name", one_of_a_kind(APART, kept=QUICK))
def test_a_difference_has_its_likely_kind(name: str) -> None:
    task, made, strategy = APART[name]
    found = onecurve.parity(task, made, strategy=STRATEGIES[strategy](), accelerator="cpu")
    assert not found.equal
    kind, *others = found.kinds
    assert others == OTHERS.get(name, [])
    assert name.startswith(kind), found.table()
    assert f"Likely {kind}: {in_python(result.TO_DO[kind])}." in found.table()


def test_so_they_are_where_layers_are_sharded() -> None:
    options: Any = {"accumulate_grad_batches": 4, "limit_train_batches": 1.0, "max_epochs": 4}
    strategy = onecurve.Tensor()
    found = onecurve.parity(Plain, fives, strategy=strategy, accelerator="cpu", **options)
    assert found.kinds == [result.ACCUMULATED, result.PLAN], found.table()


def test_it_leaves_the_process_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    before = torch.get_rng_state(), random.getstate(), dict(os.environ)
    numbers = np.random.get_state(legacy=False)["state"]["key"].tolist()  # type: ignore[index, call-overload]
    capfd.readouterr()
    found = onecurve.parity(Plain, loaders, strategy=onecurve.Single(), accelerator="cpu")
    assert "".join(capfd.readouterr()) == ""
    assert str(found) == repr(found) == found.table()
    with pytest.raises(AssertionError, match=f"{result.RESUME}: put what a step keeps"):
        assert_parity(Remembers, loaders, strategy=onecurve.Single(), accelerator="cpu")
    assert [row.quantity for row in found.rows] == [
        *("weights at the start", "loss", "gradient norm", "train_step", "val", "train_epoch"),
        *("weights at the end", "resumed after step 6"),
    ]
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), dict(os.environ))
    assert numbers == np.random.get_state(legacy=False)["state"]["key"].tolist()  # type: ignore[index, call-overload]


class Asks(Plain):
    """Looks at the strategy that it trains under, and uses what ours have beside Lightning's."""

    seen: ClassVar[list[tuple[Any, Tensor]]] = []

    def on_train_start(self) -> None:
        strategy: Any = self.trainer.strategy
        self.seen.append((strategy, strategy.all_samples(torch.ones(2, 1))))


def test_the_plain_run_is_plain() -> None:
    onecurve.parity(Asks, loaders, strategy=onecurve.Single(), accelerator="cpu")
    strategy, rows = Asks.seen[-1]
    assert isinstance(strategy, SingleDeviceStrategy)
    assert not isinstance(strategy, CallbackAPI)
    assert rows.tolist() == [[1.0], [1.0]]


TINY = (
    *("data._target_=test_parity_command.Data", "parity.steps=4"),
    *("trainer.accelerator=cpu", "monitor=val", "mode=min"),
)


class Normalized(Plain):
    def __init__(self, monitor: str = "val", mode: str = "min") -> None:
        super().__init__(partial(nn.BatchNorm1d, 8), monitor, mode)

    def configure_optimizers(self) -> Any:
        # Adam would make whole steps of the bias's gradient, which is zero but for rounding.
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.parametrize(
    ("task", "strategy", "status"),
    [("Plain", "single", 0), ("Remembers", "single", 1), ("Normalized", "ddp", 0)],
)
def test_the_command(cli: Cli, task: str, strategy: str, status: int) -> None:
    chosen = (f"task._target_=test_parity_command.{task}", "~task.num_classes")
    outcome = cli("onecurve", "parity", *chosen, *TINY, f"strategy={strategy}")
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
