"""Weights and gradients that a task, or its own optimizer, draws, reads and changes by itself."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING
from others import Samples, Stranger
from several_fits import LIGHTNING, STRATEGIES, Case, fits_in_ranks, quiet_trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

import onecurve
from onecurve.errors import UserError, user_error_behind
from onecurve.machine import unchanged_environment

SHORT = {"precision": "64-true", "num_sanity_val_steps": 0, "limit_train_batches": 2}


def loader() -> DataLoader[Any]:
    return DataLoader(Samples(), 8)


def after(ways: str, is_plain: bool = False) -> Any:
    """What several Trainers make of one task: its weights, or the line that rejects it."""
    torch.manual_seed(0)
    task = Stranger()
    for way in ways.split(", "):
        what, name = way.split()
        strategy, devices = ("auto", 1) if is_plain else (STRATEGIES[name](), 2)
        trainer = quiet_trainer(strategy, devices, max_epochs=1, **SHORT)
        try:
            getattr(trainer, what)(task, loader())
        except Exception as error:
            return str(user_error_behind(error) or error)
    return trainer.strategy.lightning_module_state_dict()


@pytest.mark.parametrize(
    "ways",
    [
        *(f"validate {one}, fit {one}, fit {one}" for one in ("fsdp", "tensor", "pipeline")),
        "validate pipeline, fit ddp, fit fsdp",
    ],
)
def test_a_task_trains_for_one_trainer_after_another(ways: str) -> None:
    with unchanged_environment(LIGHTNING):
        expected = after(ways, is_plain=True)
    torch.testing.assert_close(warm_ranks.run(after, ways), expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("ways", ["fit tensor, fit fsdp", "fit fsdp, fit pipeline"])
def test_a_task_that_is_sharded_in_another_way_is_rejected(ways: str) -> None:
    assert "Stranger is still sharded by the strategy of another" in warm_ranks.run(after, ways)


class OfRows(Stranger):
    """Changes rows of what is sharded without the context."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        self.change = change

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        weight = self.model[0].weight
        with torch.no_grad():
            exec(self.change, {"weight": weight, "gradient": weight.grad, "torch": torch, "nn": nn})


CHANGES = [
    "weight[0] = 0",
    "gradient[4:9] *= 0.5",
    "weight.view(-1)[3:9] *= 2",
    "weight.fill_diagonal_(0.1)",
    "weight.data.copy_(torch.ones(weight.shape, dtype=weight.dtype))",
    "nn.init.orthogonal_(weight)",
]


def test_rows_of_what_is_sharded_are_changed_in_the_context_alone() -> None:
    options = {"data": loader, "limit_train_batches": 2}
    cases: dict[Any, Case] = {
        (name, change): (partial(OfRows, change), STRATEGIES[name](), options)
        for name in ("fsdp", "tensor")
        for change in CHANGES
    }
    for name, line in fits_in_ranks(cases).items():
        assert "full_parameters(self)" in line, name
        assert "\n" not in line


def between_two_fits(strategy: Any, devices: int = 2) -> list[Any]:
    """What a script reads of a task after its fit, changes, draws, loads, and trains on with."""
    torch.manual_seed(0)
    trainer = quiet_trainer(strategy, devices, max_epochs=1, **SHORT)
    task = Stranger()
    ones = {name: torch.ones_like(value) for name, value in task.model.state_dict().items()}
    trainer.fit(task, loader())
    inputs, last = Samples()[0]["inputs"], task.model[-1]
    found: list[Any] = []

    def notes(read: Callable[[], Tensor]) -> None:
        try:
            found.append(read().sum().item())
        except UserError as error:
            found.append(str(error))

    with trainer.strategy.full_parameters(task):  # type: ignore[attr-defined]
        found += [parameter.detach().sum().item() for parameter in task.parameters()]
        nn.init.orthogonal_(task.model[0].weight)
        last.weight.data *= 2
        notes(lambda: task.model(inputs))
    notes(lambda: task.model(inputs))
    with trainer.strategy.full_parameters(last):  # type: ignore[attr-defined]
        found += [parameter.detach().sum().item() for parameter in last.parameters()]
    task.model.load_state_dict(ones)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(task, loader())
    return [*found, trainer.callback_metrics["train"].item()]


@pytest.mark.parametrize("strategy", ["fsdp", "tensor", "pipeline"])
def test_a_task_is_read_changed_and_loaded_after_its_fit(strategy: str) -> None:
    with unchanged_environment(LIGHTNING):
        single = between_two_fits(onecurve.Single(), 1)
    found = warm_ranks.run(between_two_fits, STRATEGIES[strategy]())
    lines = {each for each in found if isinstance(each, str)}
    expected = "called after the run" if strategy == "pipeline" else "within the context"
    assert [expected in line for line in lines] == [True]
    for one, two in zip(found, single, strict=True):
        assert isinstance(one, str) or abs(one - two) <= ROUNDING
