"""This project's task and data train alike, whichever strategy trains them: in float64."""

from typing import Any

import onecurve
import pytest
from conftest import composed
from hydra.utils import instantiate
from onecurve.app.run.instantiate import build_task
from onecurve.testing import assert_parity

STRATEGIES = {"ddp": onecurve.DDP, "fsdp": onecurve.FSDP, "pipeline": onecurve.Pipeline}


def task() -> Any:
    return build_task(composed())


def data() -> Any:
    return instantiate(composed("data.batch_size=8").data)


@pytest.mark.parametrize("name", STRATEGIES)
def test_training_is_that_of_a_plain_trainer(name: str) -> None:
    """Losses, gradients, logged values, weights, and a resume in the middle."""
    assert_parity(task, data, strategy=STRATEGIES[name](), accelerator="cpu")
