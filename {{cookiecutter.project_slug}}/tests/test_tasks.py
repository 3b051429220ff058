"""The task, its optimizers and its learning-rate schedules."""

from collections import OrderedDict
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TWO_STEPS, composed, shipped
from hydra.utils import instantiate
from omegaconf import OmegaConf
from onecurve.errors import UserError
from onecurve.testing.runs import column
from torch import nn

STEPS = 100


def each_shipped(group: str, *names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=shipped(f"{group}/{name}")) for name in names]
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    backbone = nn.Sequential(OrderedDict(first=nn.Linear(4, 8), second=nn.Linear(8, 8)))
    return nn.Sequential(OrderedDict(backbone=backbone, head=nn.Linear(8, 2)))


def optimizer_for(net: nn.Module, *overrides: str) -> Any:
    return instantiate(composed(*overrides).optimizer)(net.named_parameters())


def schedule_for(optimizer: Any, *overrides: str) -> Any:
    build: Any = instantiate(composed(*overrides).scheduler)
    return build(optimizer, total_steps=STEPS, monitor="val/acc", mode="max")


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(network().parameters(), lr=1.0, momentum=0.9)


def saved(state: dict[str, Any], path: Path) -> Any:
    """What a checkpoint makes of it."""
    torch.save(state, path / "state")
    return torch.load(path / "state", weights_only=True)


@each_shipped("optimizer", "adam", "adamw", "rmsprop", "sgd")
def test_an_optimizer_is_torchs_with_all_its_arguments(name: str, tmp_path: Path) -> None:
    config: Any = OmegaConf.to_container(composed(f"optimizer={name}").optimizer)
    nets, inputs = (network(), network()), torch.randn(32, 4)
    ours = optimizer_for(nets[0], f"optimizer={name}")
    arguments = {key: config[key] for key in signature(type(ours)).parameters if key != "params"}
    reference = type(ours)(nets[1].parameters(), **arguments)
    for _ in range(5):
        for net, optimizer in zip(nets, (ours, reference), strict=True):
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            optimizer.step()
        ours.load_state_dict(saved(ours.state_dict(), tmp_path))
    assert not torch.equal(nets[0].head.weight, network().head.weight)
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        assert torch.equal(one, other)


def test_parts_learn_at_their_own_rates() -> None:
    def parts(*overrides: str) -> dict[str, float]:
        net = network()
        groups = optimizer_for(net, "optimizer.lr=0.01", *overrides).param_groups
        # All parameters, once each, in the network's order.
        grouped = [parameter for group in groups for parameter in group["params"]]
        assert all(a is b for a, b in zip(grouped, net.parameters(), strict=True))
        return {group["name"]: group["lr"] for group in groups}

    backbone = "optimizer.lr_scale.backbone=0.1"
    assert parts(backbone) == pytest.approx({"backbone": 0.001, "rest": 0.01})
    both = parts("+optimizer.lr_scale={backbone: 0.1, backbone.second: 0.5, head: 2}")
    assert both == pytest.approx({"backbone": 0.001, "backbone.second": 0.005, "head": 0.02})
    net = network()
    net.get_submodule("backbone").requires_grad_(False)
    assert [len(group["params"]) for group in optimizer_for(net, backbone).param_groups] == [2]
    with pytest.raises(UserError, match="nothing to train"):
        optimizer_for(net.requires_grad_(False))


def rates(schedule: dict[str, Any], steps: int = STEPS) -> list[float]:
    """The learning rate of each step."""
    seen, scheduler = [], schedule["scheduler"]
    for _ in range(steps):
        seen.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return seen


@each_shipped("scheduler", "cosine", "one_cycle", "step")
def test_a_schedule_goes_on_where_it_was_saved(name: str, tmp_path: Path) -> None:
    expected = rates(schedule_for(sgd(), f"scheduler={name}"))
    first, second = sgd(), sgd()
    schedule = schedule_for(first, f"scheduler={name}")
    before = rates(schedule, 40)
    resumed = schedule_for(second, f"scheduler={name}")
    second.load_state_dict(saved(first.state_dict(), tmp_path))
    resumed["scheduler"].load_state_dict(saved(schedule["scheduler"].state_dict(), tmp_path))
    assert before + rates(resumed, 60) == pytest.approx(expected, rel=1e-11)
    assert max(expected) == pytest.approx(1, rel=0.02)
    assert min(expected) < 0.01


@shipped("scheduler/cosine")
def test_cosine_rises_and_falls() -> None:
    options = ("scheduler.warmup=0.1", "scheduler.final=0.2")
    seen = rates(schedule_for(sgd(), "scheduler=cosine", *options), STEPS + 1)
    assert seen[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert seen[55] == pytest.approx(0.6)
    assert seen[10:] == sorted(seen[10:], reverse=True)
    assert seen[-1] == pytest.approx(0.2)


@shipped("scheduler/plateau")
def test_plateau_waits_for_the_metric_of_the_task() -> None:
    optimizer = sgd()
    schedule = schedule_for(optimizer, "scheduler=plateau", "scheduler.patience=1")
    assert (schedule["interval"], schedule["monitor"]) == ("epoch", "val/acc")
    for accuracy, rate in ((0.5, 1), (0.6, 1), (0.6, 1), (0.6, 0.1)):
        schedule["scheduler"].step(torch.tensor(accuracy))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)


@shipped("task/classification", "callbacks/checkpoint")
def test_a_checkpoint_makes_the_task_again(once: Any) -> None:
    """`load_from_checkpoint` as of any LightningModule, and the loss that was logged."""
    from {{ cookiecutter.package_name }}.tasks.classification import Classification

    run = once(*TWO_STEPS, "task=classification", "task.label_smoothing=0.1")
    task = Classification.load_from_checkpoint(run / "checkpoints/last.ckpt").eval()
    data: Any = instantiate(composed("data.batch_size=8").data)
    data.prepare_data()
    data.setup("fit")
    inputs, labels = data.on_after_batch_transfer(next(iter(data.val_dataloader())), 0)
    # float32, as the run
    logged = column(run, "val/loss")[-1]
    assert task.loss(task(inputs), labels).item() == pytest.approx(logged, rel=1e-6)
