"""Optimizers with learning rates by part of the network, fused kernels, and schedules."""

from collections import OrderedDict
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from conftest import ROUNDING, Cli, largest_difference
from lightning.pytorch.plugins import MixedPrecision
from omegaconf import OmegaConf
from several_fits import Small, alone, data, quiet_trainer
from torch import nn

import onecurve
from onecurve.app.run.instantiate import build_task
from onecurve.errors import UserError
from onecurve.optim import schedulers
from onecurve.optim.optimizers import build_optimizer

STEPS = 100
OF_TASK: dict[str, Any] = {"total_steps": STEPS, "monitor": "val/acc", "mode": "max"}


def network() -> nn.Module:
    torch.manual_seed(0)
    backbone = nn.Sequential(OrderedDict(first=nn.Linear(4, 8), second=nn.Linear(8, 8)))
    return nn.Sequential(OrderedDict(backbone=backbone, head=nn.Linear(8, 2)))


def built(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    usual: dict[str, Any] = {"algorithm": "torch.optim.AdamW", "lr": 0.01, "lr_scale": {}}
    return build_optimizer(parameters, **{**usual, **options})


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(network().parameters(), lr=1.0, momentum=0.9)


def test_classes_of_pytorch_are_an_optimizer_and_a_scheduler() -> None:
    """A checkpoint could not be read again with a list of OmegaConf's in it."""
    few = {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 2}
    rprop = {"_target_": "torch.optim.Rprop", "_partial_": True, "etas": [0.5, 1.2]}
    step = {"_target_": "torch.optim.lr_scheduler.StepLR", "_partial_": True, "step_size": 3}
    asked = {"_target_": "small.task.Classification", "num_classes": 2}
    init = {"_target_": "builtins.id", "_partial_": True}
    parts = {"model": few, "init": init, "optimizer": rprop, "scheduler": step}
    task: Any = build_task(OmegaConf.create({"task": asked, **parts}))
    optimizer = task.build_optimizer(task.network.named_parameters())
    assert type(optimizer.defaults["etas"]) is list
    assert task.build_scheduler(optimizer, **OF_TASK).step_size == 3


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"algorithm": "NAdam"}, "algorithm='NAdam': No module named 'NAdam'; name a class, such"),
        ({"algorithm": "torch.optim.Adamm"}, "'Adamm'; name a class, such as algorithm="),
        (
            {"algorithm": "torch.optim.NAdam", "amsgrad": False, "fused": True},
            "optimizer.amsgrad: torch.optim.NAdam has no such argument; leave it out: "
            "'~optimizer.amsgrad' '~optimizer.fused'",
        ),
        ({"amsgrad": "~"}, "must be true or false, such as amsgrad=False"),
        ({"fused": True, "foreach": True}, "`fused` and `foreach` cannot be `True` together"),
    ],
)
def test_what_is_wrong_is_a_line_that_says_what_to_write(asked: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as refused:
        built(network().named_parameters(), **asked)
    assert line in str(refused.value)


def test_parts_learn_at_their_own_rates() -> None:
    net, backbone = network(), {"backbone": 0.1, "head": None}
    all_three = {"backbone": 0.1, "backbone.second": 0.5, "head": 2}
    for scale, rates in (
        (backbone, {"backbone": 0.001, "rest": 0.01}),
        (all_three, {"backbone": 0.001, "backbone.second": 0.005, "head": 0.02}),
    ):
        groups = built(net.named_parameters(), lr_scale=scale).param_groups
        assert {each["name"]: each["lr"] for each in groups} == pytest.approx(rates)
        # All parameters, once each, in the network's order.
        grouped = [parameter for group in groups for parameter in group["params"]]
        assert all(a is b for a, b in zip(grouped, net.parameters(), strict=True))
    (group,) = built(net.parameters()).param_groups  # without names
    assert [*map(id, group["params"])] == [*map(id, net.parameters())]
    net.get_submodule("backbone").requires_grad_(False)
    (group,) = built(net.named_parameters(), lr_scale=backbone).param_groups
    assert len(group["params"]) == 2
    with pytest.raises(UserError, match="nothing to train"):
        built(net.requires_grad_(False).named_parameters())


def test_cosine_rises_and_falls() -> None:
    schedule: Any = schedulers.cosine(sgd(), warmup=0.1, final=0.2, **OF_TASK)["scheduler"]
    seen = []
    for _ in range(STEPS + 1):
        seen += schedule.get_last_lr()
        schedule.optimizer.step()
        schedule.step()
    assert seen[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert seen[55] == pytest.approx(0.6)
    assert seen[10:] == sorted(seen[10:], reverse=True)
    assert seen[-1] == pytest.approx(0.2)


def test_plateau_waits_for_the_metric_of_the_task() -> None:
    schedule = schedulers.plateau(sgd(), patience=1, **OF_TASK)
    assert (schedule["interval"], schedule["monitor"]) == ("epoch", "val/acc")
    for accuracy, rate in ((0.5, 1), (0.6, 1), (0.6, 1), (0.6, 0.1)):
        schedule["scheduler"].step(torch.tensor(accuracy))
        assert schedule["scheduler"].get_last_lr() == pytest.approx([rate])


# Fused kernels: the same results


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
        return built(self.parameters(), fused=self.fused)


def test_a_resumed_run_uses_its_own_kernels(train: Cli) -> None:
    """The optimizer is this run's, and its state the checkpoint's."""
    ours = ("optimizer._target_=test_optim.built", "data.batch_size=200", "test=false")
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


def test_moments_of_another_memory_format_are_read_in_order() -> None:
    """A checkpoint with contiguous moments, and a network in channels_last."""
    start, gradient = torch.randn(3, 2, 4, 4), torch.arange(96.0).reshape(3, 2, 4, 4).sin()
    first = nn.Parameter(start.clone())
    second = nn.Parameter(start.clone(memory_format=torch.channels_last))
    default, fused = built([first]), built([second], fused=True)
    first.grad = second.grad = gradient
    default.step()
    second.data.copy_(first.detach())
    kernels = fused.state_dict()["param_groups"]
    fused.load_state_dict({**deepcopy(default.state_dict()), "param_groups": kernels})
    default.step()
    fused.step()
    assert torch.allclose(first, second, rtol=0, atol=1e-6)
