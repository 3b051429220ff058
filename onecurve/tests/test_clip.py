"""Clipping uses the norm of all gradients, whatever meshes they are on."""

from functools import cache
from typing import Any

import pytest
import torch
import warm_ranks
from clipped_ranks import FACTORS, LAYOUTS
from torch import nn
from torch.nn.utils import clip_grad_norm_, get_total_norm

from onecurve.strategies.clip import clipping_over_ranks


@cache
def clipped() -> dict[str, Any]:
    result: dict[str, Any] = warm_ranks.run("clipped_ranks.clipped", (), processes=4)
    return result


@pytest.mark.compares
@pytest.mark.parametrize(
    ("layout", "how"),
    [
        *((layout, how) for layout in LAYOUTS for how in FACTORS),
        ("pipeline of shards", "clipped"),
        ("sums", "clipped"),
    ],
)
def test_the_norm_is_that_of_the_full_network(layout: str, how: str) -> None:
    norm, gradients = clipped()[layout][how]
    assert norm <= 1e-12
    assert gradients <= 1e-12


def test_one_process_clips_as_torch_does() -> None:
    nets = [nn.Linear(3, 2) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net in nets:
        net(torch.ones(2, 3)).square().sum().backward()
    norm = nn.utils.clip_grad_norm_(nets[0].parameters(), 0.1)
    with clipping_over_ranks(nets[1]):
        assert torch.equal(norm, clip_grad_norm_(nets[1].parameters(), 0.1))
        assert clip_grad_norm_([], 0.1) == 0
    assert all(map(torch.equal, *([p.grad for p in net.parameters()] for net in nets)))


def test_parameters_of_other_modules_are_clipped_as_usual() -> None:
    other = nn.Linear(3, 2)
    other(torch.ones(2, 3)).square().sum().backward()
    expected = get_total_norm([parameter.grad for parameter in other.parameters()])
    before = dict(vars(nn.utils.clip_grad))
    with clipping_over_ranks(nn.Linear(3, 2), counted=lambda _: pytest.fail("of the task")):
        assert torch.equal(clip_grad_norm_(other.parameters(), 0.1), expected)
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_(_with_nan(other), 0.1, error_if_nonfinite=True)
    assert vars(nn.utils.clip_grad) == before


def _with_nan(net: nn.Module) -> list[nn.Parameter]:
    parameters = list(net.parameters())
    assert parameters[0].grad is not None
    parameters[0].grad.fill_(torch.nan)
    return parameters
