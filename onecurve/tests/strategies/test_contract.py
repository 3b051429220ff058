"""Every example of docs/contract.md trains under every strategy as by a plain Trainer."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING, Shared
from lightning.pytorch import LightningModule, seed_everything
from several_fits import Losses, data, quiet_trainer
from torch import Tensor

import onecurve
from onecurve.errors import user_error_behind
from onecurve.machine import unchanged_environment
from onecurve.strategies.callback_api import CallbackAPI

PAGE = (Path(__file__).parents[2] / "docs/contract.md").read_text(encoding="utf-8")
TASK, *EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SENTENCES = re.findall(r"^\*\*([^*]+)\*\*", PAGE, re.MULTILINE)
STRATEGIES: dict[str, Any] = {
    "ddp": onecurve.DDP,
    "fsdp": onecurve.FSDP,
    "pipeline": onecurve.Pipeline,
    "tensor": onecurve.Tensor,
}


def task(number: int) -> LightningModule:
    """The page's task, with the methods of one of its examples."""
    names: dict[str, Any] = {}
    exec(TASK, names)
    known = set(names)
    exec(EXAMPLES[number], names)
    methods = {name: value for name, value in names.items() if name not in known}
    if "training_step" in methods:
        methods["training_step"] = logging(methods["training_step"])
    made: LightningModule = type("Example", (names["Task"],), methods)()
    return made


def logging(step: Any) -> Any:
    """A step that logs the loss that it returns."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = step(self, batch, batch_idx)
        if loss is not None:
            self.log("returned", loss)
        return loss

    return training_step


def trained(number: int, strategy: Any, devices: int = 2) -> str | dict[str, Any]:
    """The line that rejected an example, or what it logged in each step, and its weights."""
    seed_everything(1, verbose=False)
    losses = Losses()
    options = {"max_epochs": 2, "precision": "64-true", "callbacks": [losses]}
    trainer = quiet_trainer(strategy, devices, **options)
    try:
        trainer.fit(task(number), data())
    except Exception as error:
        if line := user_error_behind(error):
            return str(line)
        raise
    state = trainer.strategy.lightning_module_state_dict()
    weights = {name: value.double() for name, value in state.items()}
    return {**{name: torch.tensor(each) for name, each in losses.logged.items()}, **weights}


def all_trained() -> dict[tuple[int, str], Any]:
    return {
        (number, name): trained(number, made())
        for name, made in STRATEGIES.items()
        for number in range(len(EXAMPLES))
    }


@pytest.fixture(scope="module")
def outcomes(shared: Shared) -> Any:
    run = "test_contract.all_trained"
    return shared("contract", lambda: warm_ranks.run(run, (), processes=2))


def differences(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    assert found.keys() == expected.keys()
    return {name: (found[name] - each).abs().max().item() for name, each in expected.items()}


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=[each[:40] for each in SENTENCES])
def test_an_example_has_the_curve_of_one_process(number: int, outcomes: Any) -> None:
    with unchanged_environment(("PL_GLOBAL_SEED", "PL_SEED_WORKERS")):
        single: Any = trained(number, onecurve.Single(), 1)
    for name in STRATEGIES:
        found = outcomes[number, name]
        assert not isinstance(found, str), found
        largest = differences(found, single)
        assert max(largest.values()) <= ROUNDING, (name, largest)


def test_every_sentence_has_an_example_and_every_method_a_line() -> None:
    assert len(SENTENCES) == len(EXAMPLES) >= 15
    methods = re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE)
    assert len(methods) == 5
    for method in methods:
        assert getattr(CallbackAPI, method).__doc__
        assert method in "".join(EXAMPLES)
