"""Optimizers with learning rates by part of the network, and schedules that can be resumed."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from onecurve.app.run.instantiate import build_task
from onecurve.errors import UserError
from onecurve.optim import schedulers
from onecurve.optim.optimizers import build_optimizer

STEPS = 100
OPTIMIZERS = {
    "torch.optim.Adam": {"betas": [0.8, 0.99], "eps": 1e-7, "amsgrad": True},
    "torch.optim.AdamW": {"betas": [0.8, 0.99], "weight_decay": 0.1},
    "torch.optim.RMSprop": {"alpha": 0.9, "momentum": 0.5},
    "torch.optim.SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}


def network() -> nn.Module:
    torch.manual_seed(0)
    backbone = nn.Sequential(OrderedDict(first=nn.Linear(4, 8), second=nn.Linear(8, 8)))
    return nn.Sequential(OrderedDict(backbone=backbone, head=nn.Linear(8, 2)))


def optimizer_for(net: nn.Module, scale: dict[str, Any]) -> torch.optim.Optimizer:
    return build_optimizer(
        net.named_parameters(), algorithm="torch.optim.SGD", lr=0.01, lr_scale=scale
    )


def schedule_for(optimizer: Any, name: str, **options: Any) -> Any:
    build = getattr(schedulers, name)
    return build(optimizer, total_steps=STEPS, monitor="val/acc", mode="max", **options)


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(network().parameters(), lr=1.0, momentum=0.9)


def saved(state: dict[str, Any], path: Path) -> Any:
    """What a checkpoint makes of it."""
    torch.save(state, path / "state")
    return torch.load(path / "state", weights_only=True)


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
    scheduler = task.build_scheduler(optimizer, total_steps=STEPS, monitor="loss", mode="min")
    assert scheduler.step_size == 3


@pytest.mark.parametrize("algorithm", OPTIMIZERS)
def test_an_optimizer_is_torchs_with_all_its_arguments(algorithm: str, tmp_path: Path) -> None:
    options = OPTIMIZERS[algorithm]
    nets, inputs = (network(), network()), torch.randn(32, 4)
    named = nets[0].named_parameters()
    given: Any = options
    ours = build_optimizer(named, algorithm=algorithm, lr=0.01, lr_scale={}, **given)
    reference = type(ours)(nets[1].parameters(), lr=0.01, **given)
    for _ in range(5):
        for net, optimizer in zip(nets, (ours, reference), strict=True):
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            optimizer.step()
        ours.load_state_dict(saved(ours.state_dict(), tmp_path))
    assert not torch.equal(nets[0].head.weight, network().head.weight)
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("algorithm", "line"),
    {
        "NAdam": "algorithm='NAdam': No module named 'NAdam'; name a class, such as",
        "torch.optim.Adamm": "has no attribute 'Adamm'; name a class, such as algorithm=",
        "torch.optim.NAdam": "optimizer.amsgrad: torch.optim.NAdam has no such argument; leave it "
        "out: '~optimizer.amsgrad' '~optimizer.fused'",
    }.items(),
)
def test_another_algorithm_says_what_to_write(algorithm: str, line: str) -> None:
    options: Any = {"lr": 0.1, "lr_scale": {}, "amsgrad": False, "fused": True}
    with pytest.raises(UserError) as refused:
        build_optimizer(network().named_parameters(), algorithm=algorithm, **options)
    assert line in str(refused.value)


def test_a_text_is_not_true_or_false() -> None:
    options: Any = {"lr": 0.1, "lr_scale": {}, "amsgrad": "~"}
    with pytest.raises(UserError, match="must be true or false, such as amsgrad=False"):
        build_optimizer(network().named_parameters(), algorithm="torch.optim.AdamW", **options)


def test_parameters_without_names_are_one_group() -> None:
    net = network()
    made = build_optimizer(net.parameters(), algorithm="torch.optim.SGD", lr=0.1, lr_scale={})
    (group,) = made.param_groups
    assert [*map(id, group["params"])] == [*map(id, net.parameters())]


def test_parts_learn_at_their_own_rates() -> None:
    def parts(scale: dict[str, Any]) -> dict[str, float]:
        net = network()
        groups = optimizer_for(net, scale).param_groups
        # All parameters, once each, in the network's order.
        grouped = [parameter for group in groups for parameter in group["params"]]
        assert all(a is b for a, b in zip(grouped, net.parameters(), strict=True))
        return {group["name"]: group["lr"] for group in groups}

    backbone = {"backbone": 0.1, "head": None}
    assert parts(backbone) == pytest.approx({"backbone": 0.001, "rest": 0.01})
    both = parts({"backbone": 0.1, "backbone.second": 0.5, "head": 2})
    assert both == pytest.approx({"backbone": 0.001, "backbone.second": 0.005, "head": 0.02})
    net = network()
    net.get_submodule("backbone").requires_grad_(False)
    assert [len(group["params"]) for group in optimizer_for(net, backbone).param_groups] == [2]
    with pytest.raises(UserError, match="nothing to train"):
        optimizer_for(net.requires_grad_(False), {})


def rates(schedule: dict[str, Any], steps: int = STEPS) -> list[float]:
    """The learning rate of each step."""
    seen, scheduler = [], schedule["scheduler"]
    for _ in range(steps):
        seen.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return seen


def test_cosine_rises_and_falls() -> None:
    seen = rates(schedule_for(sgd(), "cosine", warmup=0.1, final=0.2), STEPS + 1)
    assert seen[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert seen[55] == pytest.approx(0.6)
    assert seen[10:] == sorted(seen[10:], reverse=True)
    assert seen[-1] == pytest.approx(0.2)


def test_a_run_without_a_batch_has_a_schedule() -> None:
    """With trainer.limit_train_batches=0."""
    usual: Any = {"total_steps": 0, "monitor": "val/acc", "mode": "max"}
    for made in (
        schedulers.cosine(sgd(), warmup=0.1, final=0.0, **usual),
        schedulers.one_cycle(sgd(), **usual),
    ):
        assert made["scheduler"].optimizer.param_groups[0]["lr"] >= 0


def test_plateau_waits_for_the_metric_of_the_task() -> None:
    optimizer = sgd()
    schedule = schedule_for(optimizer, "plateau", patience=1)
    assert (schedule["interval"], schedule["monitor"]) == ("epoch", "val/acc")
    for accuracy, rate in ((0.5, 1), (0.6, 1), (0.6, 1), (0.6, 0.1)):
        schedule["scheduler"].step(torch.tensor(accuracy))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
