"""A value that is not finite ends the run, with the place where it came from."""

import math
import re
from collections import OrderedDict
from typing import Any

import pytest
import torch
from conftest import TINY, Cli
from torch import Tensor, nn


class Root(nn.Module):
    """The square root, also of what has none."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sqrt()


def network(**_: Any) -> nn.Sequential:
    """It fails as soon as an output of `second` is negative."""
    second = nn.Linear(16, 16)
    nn.init.constant_(second.bias, 3.0)
    layers = {"flat": nn.Flatten(), "first": nn.Linear(64, 16), "second": second, "root": Root()}
    return nn.Sequential(OrderedDict(layers, head=nn.Linear(16, 10)))


@pytest.mark.compares
@pytest.mark.parametrize("strategy", ["single", "pipeline"])
def test_the_layer_is_named_and_the_batch_is_kept(cli: Cli, strategy: str) -> None:
    own = ("callbacks=[nan_guard]", "optimizer.lr=0.05", "model._target_=test_nan_guard.network")
    outcome = cli("train.py", *TINY, f"strategy={strategy}", *own)
    assert outcome.status == 2
    assert "Traceback" not in outcome.err
    line = outcome.err.splitlines()[-1]
    assert line.startswith("error: callbacks.nan_guard: step ")
    assert "first in what layer network.root returns" in line
    assert outcome.metrics["status"] == "failed"
    # What was saved shows it again.
    saved = torch.load(outcome.run / "nan.pt", weights_only=True)
    assert f"step {saved['step']}:" in line
    weights = torch.load(outcome.run / "nan.ckpt", weights_only=True)["state_dict"]
    assert all(weight.isfinite().all() for weight in weights.values())
    net = network()
    net.load_state_dict({name: weights[f"network.{name}"] for name in net.state_dict()})
    images = torch.cat([share[0] for share in saved["batch"]])
    assert len(images) == 64
    assert not net(images).isfinite().all()


def test_weights_that_are_not_finite_are_named(cli: Cli, train: Cli) -> None:
    # A large step: the weights themselves are no numbers any more.
    large = ("optimizer=sgd", "optimizer.lr=1e38")
    guard = ("callbacks=[nan_guard]", "callbacks.nan_guard.every_n_steps=2")
    line = cli("train.py", *TINY, *large, *guard).err.splitlines()[-1]
    assert re.match("error: .*: step 2: a value is not finite, first in parameter network", line)
    # Without the guard the run goes on: the case that it is for.
    outcome = train(*large, "callbacks=[]")
    assert math.isnan(outcome.metrics["train/loss"])
    assert "train/loss is nan: +callbacks=nan_guard finds where it begins" in outcome.out
