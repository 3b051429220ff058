"""Every example of docs/contract.md trains under every strategy as by a plain Trainer."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from conftest import ROUNDING, largest_difference
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


def cases(**strategies: Callable[[], Any]) -> dict[Any, Case]:
    numbers = range(len(EXAMPLES))
    return {
        (name, number): (partial(task, number), strategy(), {})
        for name, strategy in strategies.items()
        for number in numbers
    }


def test_every_example_has_the_curve_of_one_process() -> None:
    single = alone(cases(single=onecurve.Single))
    for (name, number), found in fits_in_ranks(cases(**STRATEGIES)).items():
        assert not isinstance(found, str), (SENTENCES[number], found)
        expected = single["single", number]
        assert found.keys() == expected.keys()
        for logged, curve in expected.items():
            where = SENTENCES[number], name, logged
            assert largest_difference(found[logged], curve) <= ROUNDING, where


def test_every_sentence_has_an_example_and_every_method_a_line() -> None:
    assert len(SENTENCES) == len(EXAMPLES) >= 15
    methods = re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE)
    assert len(methods) == 5
    for method in methods:
        assert getattr(CallbackAPI, method).__doc__
        assert method in "".join(EXAMPLES)
