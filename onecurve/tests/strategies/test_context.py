"""Context parallelism: how inputs are sharded or rejected, and what `positions` returns.

That networks on shards train like those on full sequences is in rows of tests/parity/cases.py.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import onecurve
import onecurve.strategies.context_parallel as context
from onecurve.errors import UserError

Shapes = list[tuple[int, ...]]


@pytest.fixture
def first_of_four(monkeypatch: pytest.MonkeyPatch) -> Callable[[Shapes], Shapes]:
    """The shapes of the first of four ranks, without the others: nothing is sent."""
    monkeypatch.setattr(context, "redistribute", lambda value, *_: value.chunk(4, 1)[0])

    def shard(shapes: Shapes) -> Shapes:
        inputs = tuple(torch.zeros(shape) for shape in shapes)
        shards = context.shard_sequences(inputs, context.piece_of(inputs, 0, 4))
        return [tuple(shard.shape) for shard in shards]

    return shard


def test_labels_and_conditions_are_passed_in_full(first_of_four: Any) -> None:
    assert first_of_four([(2, 16), (2,), (2, 4)]) == [(2, 4), (2,), (2, 4)]


@pytest.mark.parametrize(
    ("shapes", "line"),
    [
        ([(2, 30, 8)], "the sequence length 30; use context=3, or sequences of 32"),
        ([(8,)], r"the shape \(8,\), so there is no dimension 1"),
        ([(2, 16, 8), (2, 4, 8)], "another has full sequences of that length"),
    ],
)
def test_inputs_that_cannot_be_sharded_are_rejected(
    first_of_four: Any, shapes: Shapes, line: str
) -> None:
    with pytest.raises(UserError, match=f"^context=4: .*{line}"):
        first_of_four(shapes)


def test_positions_need_no_strategy() -> None:
    assert onecurve.positions(torch.zeros(3, 5)).tolist() == [0, 1, 2, 3, 4]
    with FakeTensorMode():
        assert onecurve.positions(torch.zeros(3, 5, device="cuda")).device.type == "cuda"
    with context.working_on(context.Piece(5, rank=3, size=4)):
        assert onecurve.positions(torch.zeros(3, 5, 2)).tolist() == [15, 16, 17, 18, 19]
        # Of another length, and so not what was cut.
        assert onecurve.positions(torch.zeros(3, 6)).tolist() == [0, 1, 2, 3, 4, 5]
        compiled = torch.compile(onecurve.positions, backend="eager", fullgraph=True)
        assert compiled(torch.zeros(3, 5)).tolist() == [15, 16, 17, 18, 19]
    assert compiled(torch.zeros(3, 5)).tolist() == [0, 1, 2, 3, 4]


class RunsOutOfMemory(torch.autograd.Function):
    """In its backward pass, once a piece's gradient was handed on."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Tensor:
        context.until_backward_ends(context.Piece(4, rank=0, size=2))
        raise MemoryError


def test_a_failed_backward_pass_restores_attention() -> None:
    """As when a callback searches the largest batch."""
    attention = F.scaled_dot_product_attention
    with pytest.raises(MemoryError):
        RunsOutOfMemory.apply(torch.ones(2, requires_grad=True)).sum().backward()
    with context.working_on(None):
        pass
    assert F.scaled_dot_product_attention is attention
    assert torch.backends.mha.get_fastpath_enabled()
    assert onecurve.positions(torch.zeros(1, 4)).tolist() == [0, 1, 2, 3]
