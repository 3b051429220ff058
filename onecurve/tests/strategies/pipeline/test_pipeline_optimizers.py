"""strategy=pipeline: an optimizer that combines parameters is rejected, any other trains."""

from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import Shared
from several_fits import Case, Small, alone, assert_equal, assert_rejected, fits, fits_in_ranks
from torch import nn
from torch.optim import SGD, Optimizer

import onecurve
from onecurve.strategies.pipeline.optimizers import combines_parameters


class Signs(Optimizer):
    """Updates each parameter by itself, as Lion does; has attributes of its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3})
        self.decay = 0.9

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure() if closure else None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                    mean.mul_(self.decay).add_(weight.grad)
                    weight.sub_(group["lr"] * mean.sign())
        return loss


class Clipping(Signs):
    """Clips by the norm over all gradients within its step, as Lamb does."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure() if closure else None
        weights = [weight for group in self.param_groups for weight in group["params"]]
        norm = torch.stack([weight.grad.norm() for weight in weights]).norm()
        for weight in weights:
            weight.sub_(1e-3 * weight.grad / norm)
        return loss


class Estimating(Clipping):
    """Takes a step's size from the steps before, as Prodigy does: the first is of each alone."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure() if closure else None
        for group in self.param_groups:
            size = group.get("size", 1e-3)
            for weight in group["params"]:
                weight.sub_(size * weight.grad)
            group["size"] = size * (1 + sum(float(each.grad.sum()) for each in group["params"]))
        return loss


class Around(Optimizer):
    """Steps another one, as Lookahead does, whose groups are its own."""

    def __init__(self, base: Optimizer) -> None:
        super().__init__(base.param_groups, {})
        self.base = base
        self.param_groups = base.param_groups

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return self.base.step(closure)


class Prepared(Signs):
    """Has the state of its parameters before its first step, of which a copy has none."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["sum"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure() if closure else None
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["sum"] += weight.grad
            weight.sub_(1e-3 * self.state[weight]["sum"])
        return loss


MOMENTUM = partial(SGD, lr=0.1, momentum=0.9)
KINDS: list[tuple[Any, bool | None]] = [
    (Signs, False),
    (MOMENTUM, False),
    (lambda weights: Around(MOMENTUM(weights)), False),
    (Clipping, True),
    (Estimating, True),
    (lambda weights: Around(Clipping(weights)), True),
    (Prepared, None),
]


@pytest.mark.parametrize(("make", "combines"), KINDS)
def test_an_optimizer_is_tried_out_beside_the_network(make: Any, combines: bool | None) -> None:
    """Weights, gradients, state and random numbers stay as they were; its hooks are not called."""
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer: Optimizer = make(network.parameters())
    calls: list[Any] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append(0))
    before = [weight.clone() for weight in network.parameters()]
    drawn, keys = torch.get_rng_state(), len(optimizer.state)
    assert combines_parameters(optimizer) is combines
    for one, other in zip(before, network.parameters(), strict=True):
        assert torch.equal(one, other)
        assert other.grad is None
    assert torch.equal(torch.get_rng_state(), drawn)
    assert len(optimizer.state) == keys
    assert not calls


class Optimized(Small):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def configure_optimizers(self) -> Any:
        return self.kind(self.parameters())


TRAINED = (Signs, Prepared)
REJECTED = (Clipping, Estimating)


def case(kind: Any) -> Case:
    pipeline = onecurve.Pipeline(microbatches=2, timeout_seconds=30)
    return partial(Optimized, kind), pipeline, {"max_epochs": 1}


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> Any:
    cases = {kind.__name__: case(kind) for kind in (*TRAINED, *REJECTED)}
    return shared("optimizers", partial(fits_in_ranks, cases))


@pytest.mark.compares
@pytest.mark.parametrize("kind", TRAINED)
def test_one_that_updates_each_parameter_by_itself_trains(outcomes: Any, kind: Any) -> None:
    name = kind.__name__
    assert_equal(outcomes[name], alone({name: case(kind)})[name])


@pytest.mark.parametrize("kind", REJECTED)
def test_one_that_combines_parameters_is_rejected(outcomes: Any, kind: Any) -> None:
    name = kind.__name__
    line = f"{name} updates a parameter by the gradients of others, and a rank has only those of"
    assert_rejected(outcomes[name], line)
    assert "strategy=DDP()" in outcomes[name]


def said_in(kind: Any) -> str:
    with redirect_stderr(StringIO()) as said:
        fits({"": case(kind)})
    return said.getvalue()


@pytest.mark.parametrize(("kind", "times"), [(Signs, 0), (Prepared, 1)])
def test_a_line_tells_of_one_that_cannot_be_tried_out(kind: Any, times: int) -> None:
    said = warm_ranks.run("test_pipeline_optimizers.said_in", (kind,), processes=2)
    assert said.count(f"{kind.__name__} is not one of torch.optim, and could not be tried") == times
