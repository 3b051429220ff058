"""The callback of this project: the same values, and the same training, under every strategy."""

from typing import Any

import pytest
import torch
from conftest import STRATEGIES, composed, shipped
from hydra.utils import instantiate
from onecurve.testing.runs import column

SHORT = (
    "trainer.precision=64-true",
    "trainer.max_epochs=2",
    "trainer.limit_train_batches=4",
    "trainer.limit_val_batches=1",
    "logger=csv",
    "test=false",
)
pytestmark = shipped("callbacks/weight_norm", "callbacks/checkpoint")


@pytest.mark.parametrize("strategy", [n for n in ("single", "fsdp", "pipeline") if n in STRATEGIES])
def test_norms_are_those_of_single_and_training_is_what_it_was(once: Any, strategy: str) -> None:
    measured = once(*SHORT, "callbacks=[checkpoint,weight_norm]", *STRATEGIES[strategy])
    single = once(*SHORT, "callbacks=[checkpoint]", *STRATEGIES["single"])
    losses, without = column(measured, "train/loss"), column(single, "train/loss")
    assert losses == pytest.approx(without, rel=1e-11, abs=0)
    state = torch.load(single / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    network: Any = instantiate(composed().model)
    names = [f"network.{name}" for name, _ in network.named_parameters()]
    weights = {f"norm/{name}": float(state[name].norm()) for name in names}
    weights["norm/all"] = sum(norm**2 for norm in weights.values()) ** 0.5
    for name, norm in weights.items():
        seen = column(measured, name)
        assert len(seen) == 2
        assert seen[-1] == pytest.approx(norm, rel=1e-11), name
