"""Fused optimizers under every strategy: other kernels, the same results."""

from collections.abc import Iterable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from conftest import FLOAT64, ROUNDING, Cli, column, largest_difference
from lightning.pytorch.plugins import MixedPrecision
from several_fits import Small, alone, data, quiet_trainer
from torch import nn

import onecurve
from onecurve.errors import UserError
from onecurve.optim.optimizers import build_optimizer


def build(parameters: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    named = [(str(number), parameter) for number, parameter in enumerate(parameters)]
    return build_optimizer(named, lr_scale={}, **options)


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
        options = {"algorithm": "torch.optim.AdamW", "lr": 0.1, "fused": self.fused}
        return build(self.parameters(), **options)


@pytest.mark.compares
def test_a_resumed_run_uses_its_own_kernels(train: Cli) -> None:
    """The optimizer is this run's, and its state the checkpoint's."""
    ours = (
        FLOAT64, "optimizer._target_=test_fused.build", "+optimizer.algorithm=torch.optim.AdamW",
        "data.batch_size=200", "test=false", "scheduler=none",
    )  # fmt: skip
    whole = column(train(*ours, "+optimizer.fused=false").run, "train/loss")
    saved = train(*ours, "trainer.max_epochs=1", "+optimizer.fused=true").run
    last = saved / "checkpoints/last.ckpt"
    rest = train(*ours, "+optimizer.fused=false", f"resume={last}")
    states = [torch.load(run / "checkpoints/last.ckpt") for run in (saved, rest.run)]
    kernels = [state["optimizer_states"][0]["param_groups"][0]["fused"] for state in states]
    assert kernels == [True, False]
    assert "optimizer.fused" not in rest.out
    curve = column(saved, "train/loss") + column(rest.run, "train/loss")
    assert largest_difference(whole, curve) <= ROUNDING


@pytest.mark.compares
def test_gradients_may_have_any_memory_layout() -> None:
    """PyTorch's kernel for the CPU silently misreads them."""
    plain, fused = (partial(Chosen, False), None, {}), (partial(Chosen, True, True), None, {})
    curves = [logged["train/loss"] for logged in alone({1: plain, 2: fused}).values()]
    assert largest_difference(*curves) <= ROUNDING


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


def test_two_kernels_at_a_time_are_one_line() -> None:
    weight, options = nn.Parameter(torch.ones(2)), {"algorithm": "torch.optim.Adam", "lr": 0.1}
    with pytest.raises(UserError, match="`fused` and `foreach` cannot be `True` together"):
        build([weight], fused=True, foreach=True, **options)


def test_a_parameter_with_gaps_in_memory_has_the_default_kernel() -> None:
    """PyTorch's kernel for the CPU silently misreads it."""
    rows = torch.arange(16.0).reshape(4, 4)
    weights = {True: nn.Parameter(rows[:, :2]), None: nn.Parameter(rows[:, :2].clone())}
    for fused, weight in weights.items():
        optimizer = build([weight], algorithm="torch.optim.Adam", lr=0.1, fused=fused)
        weight.grad = torch.ones(4, 2)
        optimizer.step()
        assert optimizer.param_groups[0]["fused"] is None
    assert torch.equal(*weights.values())


def test_moments_of_another_memory_format_are_read_in_order() -> None:
    """A checkpoint with contiguous moments, and a network in channels_last."""
    first = torch.randn(3, 2, 4, 4)
    gradient = torch.arange(96.0).reshape(3, 2, 4, 4).sin()
    layouts = {None: torch.contiguous_format, True: torch.channels_last}
    weights = {fused: nn.Parameter(first.to(memory_format=each)) for fused, each in layouts.items()}
    options: Any = {"algorithm": "torch.optim.AdamW", "lr": 0.1}
    plain, fused = (build([each], fused=kind, **options) for kind, each in weights.items())
    for parameter in weights.values():
        parameter.grad = gradient.clone()
    plain.step()
    weights[True].data.copy_(weights[None].detach())
    state = deepcopy(plain.state_dict())
    fused.load_state_dict({**state, "param_groups": fused.state_dict()["param_groups"]})
    for optimizer in (plain, fused):
        optimizer.step()
    assert torch.allclose(*(each.detach() for each in weights.values()), rtol=0, atol=1e-6)
