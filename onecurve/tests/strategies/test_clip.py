"""Clipping by the norm of sums, in one process, and of what is no task.

Over meshes it is a row of tests/parity/cases.py.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import warm_ranks
from conftest import ROUNDING
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.utils import clip_grad_norm_, get_total_norm

from onecurve.strategies.clip import clipping_over_ranks


def clipped_sums() -> list[float]:
    """How far norm and clipped gradient are where each of two ranks has an addend."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    gradient = torch.arange(1.0, 7, dtype=torch.float64)
    held: Any = nn.Parameter(DTensor.from_local(torch.zeros(6).double(), mesh, [Replicate()]))
    held.grad = DTensor.from_local(gradient / 2, mesh, [Partial()])
    with clipping_over_ranks(nn.ParameterList([held])):
        norm = nn.utils.clip_grad_norm_([held], 0.5)
    scaled = gradient * 0.5 / (gradient.norm() + 1e-6)
    apart = (norm - gradient.norm(), held.grad.full_tensor() - scaled)
    return [float(each.abs().max()) for each in apart]


@pytest.mark.compares
def test_the_norm_of_sums_is_not_the_sum_of_norms() -> None:
    assert max(warm_ranks.run("test_clip.clipped_sums", (), processes=2)) <= ROUNDING


def test_one_process_clips_as_torch_does() -> None:
    nets = [nn.Linear(3, 2) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net in nets:
        net(torch.ones(2, 3)).square().sum().backward()
    norm = nn.utils.clip_grad_norm_(nets[0].parameters(), 0.1)
    with clipping_over_ranks(nets[1]):
        assert torch.equal(norm, clip_grad_norm_(nets[1].parameters(), 0.1))
        assert clip_grad_norm_([], 0.1) == 0
        nn.utils.clip_grad_value_(nn.Linear(2, 2).parameters(), 0.1)
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
