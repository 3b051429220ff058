"""Every example of docs/contract.md trains under every strategy as by a plain Trainer."""

import re
from functools import partial
from pathlib import Path
from typing import Any

from conftest import ROUNDING, largest_difference
from lightning.pytorch import LightningModule
from several_fits import STRATEGIES, alone, fits_in_ranks

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


def test_every_example_has_the_curve_of_one_process() -> None:
    assert len(SENTENCES) == len(EXAMPLES) >= 15
    tasks = [partial(task, number) for number in range(len(EXAMPLES))]
    single = alone({number: (each, None, {}) for number, each in enumerate(tasks)})
    found = fits_in_ranks(
        {
            (name, number): (each, strategy(), {})
            for name, strategy in STRATEGIES.items()
            for number, each in enumerate(tasks)
        }
    )
    for (name, number), curves in found.items():
        where = SENTENCES[number], name
        assert not isinstance(curves, str), (where, curves)
        assert curves.keys() == single[number].keys(), where
        for logged, curve in single[number].items():
            assert largest_difference(curves[logged], curve) <= ROUNDING, (where, logged)
