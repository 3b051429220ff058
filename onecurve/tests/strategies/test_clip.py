"""Clipping in one process, and of what is no task.

Over meshes it is a row of tests/parity/cases.py.
"""

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, get_total_norm

from onecurve.strategies.clip import clipping_over_ranks


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
