"""A value that is not finite ends the run, with the place where it came from."""

import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from conftest import ALL, TINY, Cli
from torch import Tensor, nn


class Root(nn.Module):
    """The square root, also of what has none."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.sqrt()


def network(**_: Any) -> nn.Sequential:
    """It fails as soon as an output of `second` is negative."""
    second = nn.Linear(16, 16)
    nn.init.constant_(second.bias, 3.0)
    return nn.Sequential(
        OrderedDict(
            flat=nn.Flatten(), first=nn.Linear(64, 16), second=second, root=Root(),
            head=nn.Linear(16, 10),
        )
    )  # fmt: skip


def overflowing(**_: Any) -> nn.Sequential:
    """The last output of `first` overflows, which is another rank's where the layer is cut."""
    net = network()
    with torch.no_grad():
        net.first.weight[-1] = torch.where(torch.arange(64) % 2 == 0, 3e38, -3e38)
        net.first.bias[-1] = 3e38
    del net.root
    return net


@pytest.mark.compares
@pytest.mark.parametrize("name", ["single", "pipeline", "tensor"])
def test_the_layer_is_named_and_the_batch_is_kept(cli: Cli, name: str) -> None:
    made, layer = ("overflowing", "first") if name == "tensor" else ("network", "root")
    outcome = cli(
        "train.py", *TINY, *ALL[name], "callbacks=[nan_guard]", "optimizer.lr=0.05",
        f"model._target_=test_nan_guard.{made}",
    )  # fmt: skip
    assert outcome.status == 2
    assert "Traceback" not in outcome.err
    line = outcome.err.splitlines()[-1]
    assert line.startswith("error: callbacks.nan_guard: step ")
    assert f"first in what layer network.{layer} returns" in line
    assert outcome.metrics["status"] == "failed"
    # What was saved shows it again.
    saved = torch.load(outcome.run / "nan.pt", weights_only=True)
    assert f"step {saved['step']}:" in line
    weights = torch.load(outcome.run / "nan.ckpt", weights_only=True)["state_dict"]
    net = overflowing() if name == "tensor" else network()
    net.load_state_dict(
        {key.removeprefix("network."): value for key, value in weights.items() if "network" in key}
    )
    images = torch.cat([share[0] for share in saved["batch"]])
    assert len(images) == 64
    assert all(parameter.isfinite().all() for parameter in net.parameters())
    assert not net(images).isfinite().all()


def test_weights_that_are_not_finite_are_named(cli: Cli) -> None:
    # A large step: the weights themselves are no numbers any more.
    outcome = cli("train.py", *TINY, "callbacks=[nan_guard]", "optimizer=sgd", "optimizer.lr=1e38")
    assert outcome.status == 2
    line = outcome.err.splitlines()[-1]
    assert "step 1: a value is not finite, first in " in line
    assert "network." in line


def test_without_the_guard_the_run_goes_on(train: Cli) -> None:
    """The case that the guard is for."""
    outcome = train("optimizer=sgd", "optimizer.lr=1e38", "callbacks=[]")
    assert math.isnan(outcome.metrics["train/loss"])
    assert "train/loss is nan: +callbacks=nan_guard finds where it begins" in outcome.out
