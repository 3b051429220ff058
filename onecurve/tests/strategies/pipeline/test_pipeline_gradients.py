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


# Several samples a micro-batch, and one.
WAYS = (("interleaved_zero_bubble", 2), (ZBV, 8))


def pipeline(schedule: Any, microbatches: int) -> onecurve.Pipeline:
    return onecurve.Pipeline(schedule=schedule, microbatches=microbatches)


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> Any:
    cases: dict[Any, Case] = {way: (AllOfThem, pipeline(*way), {}) for way in WAYS}
    return shared("gradients", partial(fits_in_ranks, cases))


@pytest.mark.compares
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_a_whole_backward(outcomes: Any, way: Any) -> None:
    single = fits_alone(AllOfThem)["AllOfThem"]
    first, *_, last = single["train/loss"]
    assert abs(last - first) > 1e-3 * first, "it moved"
    assert_equal(outcomes[way], single, epochs=2)
