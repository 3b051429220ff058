"""What is printed once, in the first step of a fit."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from several_fits import Small
from torch import nn

from onecurve.batch.random import Draws
from onecurve.strategies.first_step import FirstStep
from onecurve.strategies.mesh.sizes import Sizes


class Drops(Small):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (Small, "draw noise in prepare(batch), where it is the same"),
        (
            Drops,
            "dropout (drop) does, which trains as well; draw other noise in prepare(batch), where "
            "it is the same",
        ),
    ],
)
def test_draws_of_a_step_get_the_advice_that_fits(
    capsys: pytest.CaptureFixture[str], kind: type[Small], advice: str
) -> None:
    task = kind()
    task.trainer = cast(Any, SimpleNamespace(is_global_zero=True))
    sizes = Sizes(replicate=2)
    ranks = SimpleNamespace(sizes=sizes, all_agree=lambda decision, all: decision)
    stream = SimpleNamespace(apart={Draws.STEP})
    first = FirstStep(task, "ddp", cast(Any, ranks), cast(Any, stream), layer_sync=None)
    for _ in range(2):
        with first.training(torch.zeros(2, 6)):
            torch.rand(1)
    assert capsys.readouterr().err == (
        f"strategy=ddp: training_step of {kind.__name__} draws random numbers, different ones on "
        f"each rank, so the curve is not that of strategy=Single(); {advice}\n"
    )
