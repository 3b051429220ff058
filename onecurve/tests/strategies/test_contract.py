"""Every example of docs/contract.md trains under every strategy as by a plain Trainer."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import ROUNDING, Shared, largest_difference
from lightning.pytorch import LightningModule
from several_fits import STRATEGIES, Case, alone, fits_in_ranks

import onecurve
from onecurve.strategies.callback_api import CallbackAPI

PAGE = (Path(__file__).parents[2] / "docs/contract.md").read_text(encoding="utf-8")
TASK, *EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SENTENCES = re.findall(r"^\*\*([^*]+)\*\*", PAGE, re.MULTILINE)


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


def cases(strategy: Callable[[], Any]) -> dict[Any, Case]:
    return {number: (partial(task, number), strategy(), {}) for number in range(len(EXAMPLES))}


@pytest.fixture(scope="module")
def outcomes(shared: Shared) -> Any:
    every = {
        (name, number): case
        for name, strategy in STRATEGIES.items()
        for number, case in cases(strategy).items()
    }
    return shared("contract", partial(fits_in_ranks, every))


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=[each[:40] for each in SENTENCES])
def test_an_example_has_the_curve_of_one_process(number: int, outcomes: Any) -> None:
    single = alone({number: cases(onecurve.Single)[number]})[number]
    for name in STRATEGIES:
        found = outcomes[name, number]
        assert not isinstance(found, str), found
        assert found.keys() == single.keys()
        for logged, curve in single.items():
            assert largest_difference(found[logged], curve) <= ROUNDING, (name, logged)


def test_every_sentence_has_an_example_and_every_method_a_line() -> None:
    assert len(SENTENCES) == len(EXAMPLES) >= 15
    methods = re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE)
    assert len(methods) == 5
    for method in methods:
        assert getattr(CallbackAPI, method).__doc__
        assert method in "".join(EXAMPLES)
