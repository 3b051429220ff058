"""`Single` is a plain Trainer: the same samples, order, random numbers and attributes."""

import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from several_fits import LIGHTNING, Written, quiet_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import onecurve
from onecurve.machine import unchanged_environment


class Noisy(TensorDataset):
    """Augments in the process that reads it."""

    def __getitem__(self, index: int) -> Any:
        return tuple(part + torch.rand(()) for part in super().__getitem__(index))


class Net(LightningModule):
    """Dropout, a draw of its own in the step, and what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.seen: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen += batch[0][:, 0].tolist()
        loss = (self.net(batch[0]) - torch.randn(len(batch[0]), 1)).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("mean", self.net(batch[0]).mean())

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch[0][:, 0].tolist()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9)


def rows() -> Tensor:
    return torch.randn(22, 4, generator=torch.Generator().manual_seed(0))


def loader(**options: Any) -> DataLoader[Any]:
    options = {"batch_size": 4, "shuffle": True} | options
    return DataLoader(Noisy(rows()), **options)


def trainer(single: bool, **options: Any) -> Trainer:
    return quiet_trainer(onecurve.Single() if single else "auto", **{"max_epochs": 3, **options})


def drawn() -> tuple[float, ...]:
    """What the generators give next."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def all_of_a_run(single: bool, **options: Any) -> Any:
    """A clipped fit, a test, predictions with their indices, and a longer fit."""
    net, writer = Net(), Written()
    one = trainer(single, gradient_clip_val=0.5, callbacks=[writer])
    one.fit(net, loader(**options), loader(shuffle=False))
    metrics = {name: value.item() for name, value in one.callback_metrics.items()}
    tested = one.test(net, loader(shuffle=False), verbose=False)
    predicted = one.predict(net, DataLoader(TensorDataset(rows()), 5))
    assert writer.seen[-2][0] == [20, 21]
    one.fit_loop.max_epochs = 5
    one.fit(net, loader(**options))
    weights = [parameter.tolist() for parameter in net.parameters()]
    left = sorted(vars(net)), type(copy.deepcopy(net)).__name__
    counts = one.current_epoch, one.global_step
    return net.seen, weights, metrics, tested, predicted, writer.seen, left, counts, drawn()


def several_networks(single: bool) -> Any:
    """Fitted one after the other, as of an ensemble; each draws where the one before ended."""
    members = []
    for _ in range(3):
        net = Net()
        trainer(single, max_epochs=1).fit(net, loader())
        members.append(str(net.state_dict()))
    assert len({*members}) == 3
    return members, drawn()


@pytest.mark.parametrize(
    "run",
    [all_of_a_run, partial(all_of_a_run, num_workers=1), several_networks],
    ids=["a run", "processes", "several networks"],
)
def test_single_is_a_plain_trainer(run: Callable[[bool], Any]) -> None:
    outcomes = []
    for single in (False, True):
        with unchanged_environment(LIGHTNING):
            seed_everything(1, verbose=False)
            outcomes.append(run(single))
    assert outcomes[0] == outcomes[1]
