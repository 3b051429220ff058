"""Every optimizer and every learning-rate schedule."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import get_class, instantiate
from omegaconf import DictConfig
from onecurve.command.resolvers import register_resolvers
from onecurve.errors import UserError
from torch import nn
from torch.optim import Optimizer

CONFIGS = Path(__file__).parent.parent / "configs"
OPTIMIZERS = sorted(path.stem for path in (CONFIGS / "optimizer").glob("*.yaml"))
SCHEDULERS = sorted(path.stem for path in (CONFIGS / "scheduler").glob("*.yaml"))
STEPS = 100


def composed(*overrides: str) -> DictConfig:
    register_resolvers()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def network() -> nn.Module:
    torch.manual_seed(0)
    backbone = nn.Sequential()
    backbone.add_module("first", nn.Linear(4, 8))
    backbone.add_module("second", nn.Linear(8, 8))
    net = nn.Sequential()
    net.add_module("backbone", backbone)
    net.add_module("head", nn.Linear(8, 2))
    return net


def optimizer_for(net: nn.Module, *overrides: str) -> Optimizer:
    optimizer: Optimizer = instantiate(composed(*overrides).optimizer)(net.named_parameters())
    return optimizer


def scheduler_for(optimizer: Optimizer, *overrides: str, total_steps: float = STEPS) -> Any:
    build: Callable[..., Any] = instantiate(composed(*overrides).scheduler)
    return build(optimizer, total_steps=total_steps, monitor="val/acc", mode="max")


def save_and_load(state: dict[str, Any], path: Path) -> dict[str, Any]:
    torch.save(state, path)
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns_and_can_be_saved(name: str, tmp_path: Path) -> None:
    net = network()
    optimizer = optimizer_for(net, f"optimizer={name}", "optimizer.lr=0.01")
    inputs, targets = torch.randn(32, 4), torch.randint(2, (32,))
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(net(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.02
    assert len(optimizer.param_groups) == 1
    optimizer.load_state_dict(save_and_load(optimizer.state_dict(), tmp_path / "state"))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_argument_of_an_optimizer_can_be_seen(name: str) -> None:
    config = composed(f"optimizer={name}").optimizer
    shown = {key for key in config if key not in ("_target_", "_partial_", "algorithm", "lr_scale")}
    algorithm = inspect.signature(get_class(config.algorithm))
    assert shown == set(algorithm.parameters) - {"params"}
    defaults = {key: value.default for key, value in algorithm.parameters.items()}
    for key in shown - {"lr", "momentum"}:
        assert config[key] == pytest.approx(defaults[key]), key


def rates(optimizer: Optimizer) -> dict[str, float]:
    return {group["name"]: group["lr"] for group in optimizer.param_groups}


def test_parts_learn_at_their_own_rates() -> None:
    net = network()
    lr = "optimizer.lr=0.01"
    optimizer = optimizer_for(net, lr, "optimizer.lr_scale.backbone=0.1")
    assert rates(optimizer) == pytest.approx({"backbone": 0.001, "rest": 0.01})
    nested = "+optimizer.lr_scale.backbone.second=0.5"
    assert rates(optimizer_for(net, lr, nested)) == pytest.approx(
        {"rest": 0.01, "backbone.second": 0.005}
    )
    both = "+optimizer.lr_scale={backbone: 0.1, backbone.second: 0.5, head: 2}"
    optimizer = optimizer_for(net, lr, both)
    assert rates(optimizer) == pytest.approx(
        {"backbone": 0.001, "backbone.second": 0.005, "head": 0.02}
    )
    # All parameters, once each, in the network's order.
    grouped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert all(a is b for a, b in zip(grouped, net.parameters(), strict=True))


def test_frozen_parameters_are_left_out() -> None:
    net = network()
    net.get_submodule("backbone").requires_grad_(False)
    optimizer = optimizer_for(net, "optimizer.lr_scale.backbone=0.1")
    assert [len(group["params"]) for group in optimizer.param_groups] == [2]
    net.requires_grad_(False)
    with pytest.raises(UserError, match="nothing to train"):
        optimizer_for(net)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+optimizer.lr_scale.backbon=0.1", r"lr_scale\.backbon: .*did you mean backbone"),
        ("+optimizer.lr_scale.xyz=0.1", r"lr_scale\.xyz: .*backbone, head"),
        ("optimizer.lr_scale.head=slow", r"lr_scale\.head=slow"),
        ("optimizer.lr_scale.head=-1", r"lr_scale\.head=-1"),
        ("optimizer.lr=fast", r"optimizer\.lr=fast"),
        ("optimizer.lr=0", r"optimizer\.lr=0"),
        ("optimizer.betas=[2,0.9]", "beta"),
        ("+optimizer.momentun=0.1", r"optimizer\.momentun"),
    ],
)
def test_what_an_optimizer_refuses_is_named(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        optimizer_for(network(), override)
    assert "\n" not in str(caught.value)


def run(optimizer: Optimizer, schedule: dict[str, Any], steps: int = STEPS) -> list[float]:
    """The learning rate of each step."""
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule["scheduler"].step()
    return seen


def sgd(*overrides: str) -> Optimizer:
    return optimizer_for(network(), "optimizer=sgd", "optimizer.lr=1.0", *overrides)


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name not in ("none", "plateau")])
def test_every_schedule_goes_on_where_it_was_saved(name: str, tmp_path: Path) -> None:
    whole = sgd()
    expected = run(whole, scheduler_for(whole, f"scheduler={name}"))
    first, second = sgd(), sgd()
    schedule = scheduler_for(first, f"scheduler={name}")
    before = run(first, schedule, 40)
    resumed = scheduler_for(second, f"scheduler={name}")
    saved = {"optimizer": first.state_dict(), "schedule": schedule["scheduler"].state_dict()}
    saved = save_and_load(saved, tmp_path / "state")
    second.load_state_dict(saved["optimizer"])
    resumed["scheduler"].load_state_dict(saved["schedule"])
    assert before + run(second, resumed, 60) == pytest.approx(expected)
    assert len(set(expected)) > 1


def test_none_is_no_schedule() -> None:
    assert scheduler_for(sgd(), "scheduler=none") is None


def test_cosine_rises_and_falls() -> None:
    optimizer = sgd()
    options = ("scheduler.warmup=0.1", "scheduler.final=0.2")
    schedule = scheduler_for(optimizer, "scheduler=cosine", *options)
    seen = run(optimizer, schedule)
    assert schedule["interval"] == "step"
    assert seen[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert seen[55] == pytest.approx(0.6)
    assert seen[10:] == sorted(seen[10:], reverse=True)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


@pytest.mark.parametrize("warmup", [0, 1])
def test_cosine_with_all_or_no_warm_up(warmup: int) -> None:
    optimizer = sgd()
    schedule = scheduler_for(optimizer, "scheduler=cosine", f"scheduler.warmup={warmup}")
    seen = run(optimizer, schedule)
    assert max(seen) == pytest.approx(1, rel=0.02)
    with pytest.raises(UserError, match=r"scheduler\.warmup=5"):
        scheduler_for(sgd(), "scheduler=cosine", "scheduler.warmup=5")


def test_step_falls_by_epochs() -> None:
    optimizer = sgd()
    schedule = scheduler_for(optimizer, "scheduler=step", "scheduler.step_size=2")
    assert schedule["interval"] == "epoch"
    assert run(optimizer, schedule, 6) == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_one_cycle_keeps_the_proportions_of_the_parts() -> None:
    optimizer = sgd("optimizer.lr_scale.backbone=0.1")
    schedule = scheduler_for(optimizer, "scheduler=one_cycle")
    seen = run(optimizer, schedule)
    assert schedule["interval"] == "step"
    assert max(seen) == pytest.approx(0.1)
    low, high = (group["lr"] for group in optimizer.param_groups)
    assert low == pytest.approx(high / 10)
    without = sgd("optimizer.momentum=0")
    scheduler_for(without, "scheduler=one_cycle", "scheduler.cycle_momentum=false")


def test_plateau_waits_for_the_metric_of_the_task(tmp_path: Path) -> None:
    optimizer = sgd()
    schedule = scheduler_for(optimizer, "scheduler=plateau", "scheduler.patience=1")
    assert (schedule["interval"], schedule["monitor"]) == ("epoch", "val/acc")
    scheduler = schedule["scheduler"]
    for accuracy in (0.5, 0.6, 0.6):
        scheduler.step(torch.tensor(accuracy))
    assert optimizer.param_groups[0]["lr"] == 1.0
    scheduler.load_state_dict(save_and_load(scheduler.state_dict(), tmp_path / "state"))
    scheduler.step(torch.tensor(0.6))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["cosine", "one_cycle"])
def test_a_run_without_an_end_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"trainer\.max_epochs"):
        scheduler_for(sgd(), f"scheduler={name}", total_steps=float("inf"))
