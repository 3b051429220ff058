"""Clipping knows the norm of all gradients, whatever meshes they lie on."""

from functools import cache
from typing import Any

import pytest
import torch
import warm_ranks
from clipped_ranks import FACTORS, LAYOUTS
from torch import nn

from onecurve.strategies.clip import clip_by_global_norm


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
def test_the_norm_is_that_of_the_whole(layout: str, how: str) -> None:
    norm, gradients = clipped()[layout][how]
    assert norm <= 1e-12
    assert gradients <= 1e-12


def test_one_process_clips_as_torch_does() -> None:
    nets = [nn.Linear(3, 2) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net in nets:
        net(torch.ones(2, 3)).square().sum().backward()
    norms = (
        nn.utils.clip_grad_norm_(nets[0].parameters(), 0.1),
        clip_by_global_norm(nets[1].parameters(), 0.1),
    )
    assert torch.equal(*norms)
    assert all(map(torch.equal, *([p.grad for p in net.parameters()] for net in nets)))
    assert clip_by_global_norm([], 0.1) == 0
