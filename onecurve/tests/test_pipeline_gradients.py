"""strategy=pipeline: schedules that split the backward pass have the gradients of a whole one."""

from functools import partial
from typing import Any

import pytest
import torch
from conftest import ZBV, Shared
from several_fits import Case, Small, assert_equal, fits_alone, fits_in_ranks
from torch import Tensor, nn

import onecurve


class Sum(nn.Module):
    """Pairs of weights whose gradients are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.eye(6)), nn.Parameter(torch.ones(6, 6) / 6)
        self.c, self.d = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.ones(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ (self.a + self.b) + (self.c + self.d)


class LikeItsInput(nn.Module):
    """A weight whose gradient is that of its input, where a micro-batch is one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1, 6))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.shift


class Spread(nn.Module):
    """A weight whose gradient is one number in many places, and one whose gradient is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.matrix = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.eye(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.matrix.t() + self.bias.sum()


class Twice(nn.Module):
    """A weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(6))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs @ self.weight).tanh() @ self.weight + self.weight.sum()


class AllOfThem(Small):
    """Has each such layer in the middle of the network and at its end."""

    def network(self) -> nn.Module:
        kinds = (Sum, LikeItsInput, Spread, Twice)
        layers = [nn.Linear(6, 6), *(kind() for kind in kinds * 2)]
        return nn.Sequential(*layers, nn.Tanh(), nn.Linear(6, 2))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Enter(nn.Module):
    """A state, and what all later layers are told: (N, 6), (N, 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(inputs), self.second(inputs).tanh()


class Residual(nn.Module):
    """Keeps what it passes on for gradients of weights; that of its input is part of another."""

    def __init__(self) -> None:
        super().__init__()
        self.change, self.told = nn.Linear(12, 6), nn.Linear(6, 6)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        told = inputs[1]
        return self.change(torch.cat(inputs, 1)).tanh() + self.told(told), told


class Leave(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(12, 2)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        return self.last(torch.cat(inputs, 1))


class Told(AllOfThem):
    """Passes tuples on, as diffusion and a U-Net do."""

    def network(self) -> nn.Module:
        return nn.Sequential(Enter(), *(Residual() for _ in range(6)), Leave())


TASKS = (AllOfThem, Told)
# Several samples a micro-batch, and one.
WAYS = (("interleaved_zero_bubble", 2), (ZBV, 8))


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> Any:
    """By task, and by task and way."""
    cases: dict[Any, Case] = {
        (task.__name__, *way): (task, onecurve.Pipeline(*way), {}) for task in TASKS for way in WAYS
    }
    alone = shared("gradients single", partial(fits_alone, *TASKS))
    return {**alone, **shared("gradients", partial(fits_in_ranks, cases))}


@pytest.mark.compares
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_a_whole_backward(outcomes: Any, task: Any, way: Any) -> None:
    single = outcomes[task.__name__]
    first, *_, last = single["train/loss"]
    assert abs(last - first) > 1e-3 * first, "it moved"
    assert_equal(outcomes[task.__name__, *way], single, epochs=2)
