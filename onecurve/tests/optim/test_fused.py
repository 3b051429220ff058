"""Fused optimizers under every strategy: other kernels, the same results."""

from collections.abc import Iterable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from conftest import ROUNDING, Cli, largest_difference
from lightning.pytorch.plugins import MixedPrecision
from several_fits import Small, alone, data, quiet_trainer
from torch import nn

import onecurve
from onecurve.optim.optimizers import build_optimizer


def build(parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    named = [(str(number), parameter) for number, parameter in enumerate(parameters)]
    usual: dict[str, Any] = {"algorithm": "torch.optim.AdamW", "lr": 0.1, "lr_scale": {}}
    return build_optimizer(named, **{**usual, **options})


class Chosen(Small):
    """Trains with the fused kernel, or without it; its gradients may lie as some layers' do."""

    def __init__(self, fused: bool | None, transposed: bool = False) -> None:
        super().__init__()
        self.fused, self.transposed = fused, transposed

    def on_after_backward(self) -> None:
        for parameter in self.parameters() if self.transposed else ():
            if parameter.grad is not None and parameter.ndim == 2:
                parameter.grad = parameter.grad.t().contiguous().t()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return build(self.parameters(), fused=self.fused)


def test_a_resumed_run_uses_its_own_kernels(train: Cli) -> None:
    """The optimizer is this run's, and its state the checkpoint's."""
    ours = ("optimizer._target_=test_fused.build", "data.batch_size=200", "test=false")
    saved = train(*ours, "trainer.max_epochs=1", "+optimizer.fused=true").run
    last = saved / "checkpoints/last.ckpt"
    rest = train(*ours, "+optimizer.fused=false", f"resume={last}")
    states = [torch.load(run / "checkpoints/last.ckpt") for run in (saved, rest.run)]
    kernels = [state["optimizer_states"][0]["param_groups"][0]["fused"] for state in states]
    assert kernels == [True, False]
    assert "optimizer.fused" not in rest.out


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_scaled_gradients_are_unscaled_before_they_are_clipped(precision: Any) -> None:
    """With the fused kernel the weights are those of the default one."""
    weights = []
    for fused in (True, None):
        torch.manual_seed(0)
        task, plugin = Chosen(fused), MixedPrecision(precision, "cpu")
        options = {"plugins": plugin, "max_epochs": 1, "gradient_clip_val": 0.1}
        trainer = quiet_trainer(onecurve.Single(), **options)
        trainer.fit(task, data())
        assert trainer.optimizers[0].param_groups[0]["fused"] is fused
        weights.append(task.net[0].weight.detach())  # type: ignore[index]
    assert torch.allclose(*weights, rtol=0, atol=1e-7)


# PyTorch's kernel for the CPU silently misreads what lies otherwise in memory.


@pytest.mark.compares
def test_gradients_may_have_any_memory_layout() -> None:
    plain, fused = (partial(Chosen, False), None, {}), (partial(Chosen, True, True), None, {})
    curves = [logged["train/loss"] for logged in alone({1: plain, 2: fused}).values()]
    assert largest_difference(*curves) <= ROUNDING


def test_a_parameter_with_gaps_in_memory_has_the_default_kernel() -> None:
    rows = torch.arange(16.0).reshape(4, 4)
    weights = {True: nn.Parameter(rows[:, :2]), None: nn.Parameter(rows[:, :2].clone())}
    for fused, weight in weights.items():
        optimizer = build([weight], fused=fused)
        weight.grad = torch.ones(4, 2)
        optimizer.step()
        assert optimizer.param_groups[0]["fused"] is None
    assert torch.equal(*weights.values())


def test_moments_of_another_memory_format_are_read_in_order() -> None:
    """A checkpoint with contiguous moments, and a network in channels_last."""
    start, gradient = torch.randn(3, 2, 4, 4), torch.arange(96.0).reshape(3, 2, 4, 4).sin()
    first = nn.Parameter(start.clone())
    second = nn.Parameter(start.clone(memory_format=torch.channels_last))
    default, fused = build([first]), build([second], fused=True)
    first.grad = second.grad = gradient
    default.step()
    second.data.copy_(first.detach())
    kernels = fused.state_dict()["param_groups"]
    fused.load_state_dict({**deepcopy(default.state_dict()), "param_groups": kernels})
    default.step()
    fused.step()
    assert torch.allclose(first, second, rtol=0, atol=1e-6)
