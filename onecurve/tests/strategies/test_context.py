"""Context parallelism: how inputs are sharded or rejected, and what `positions` returns.

That networks on shards train like those on full sequences is in rows of tests/parity/cases.py.
"""

from typing import Any

import pytest
import torch
from conftest import ROUNDING, largest_difference, one_of_a_kind
from gpu_check.tasks import small_tokens, small_transformer
from several_fits import Case, alone, fits_in_ranks
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import onecurve
import onecurve.strategies.context_parallel as context
from onecurve.errors import UserError


@pytest.mark.compares
@pytest.mark.parametrize(
    "axis", one_of_a_kind(("replicate", "shard", "tensor", "pipeline"), kept=["tensor"])
)
def test_context_combines_with_another_axis(axis: str) -> None:
    options = {"data": small_tokens, "max_epochs": 1, "devices": 4}
    cases: dict[Any, Case] = {
        axis: (small_transformer, onecurve.mesh(context=2, **{axis: 2}), options)
    }
    single, found = alone(cases)[axis], fits_in_ranks(cases, processes=4)[axis]
    assert not isinstance(found, str), found
    assert largest_difference(single["train/loss"], found["train/loss"]) <= ROUNDING


def first_of_four(shapes: list[tuple[int, ...]], monkeypatch: Any) -> list[Any]:
    """The shapes of the first of four ranks, without the others: nothing is sent."""
    monkeypatch.setattr(context, "redistribute", lambda value, *_: value.chunk(4, 1)[0])
    inputs = tuple(torch.zeros(shape) for shape in shapes)
    return [
        tuple(shard.shape)
        for shard in context.shard_sequences(inputs, context.piece_of(inputs, 0, 4))
    ]


CANNOT_BE_CUT: dict[str, tuple[list[tuple[int, ...]], str]] = {
    "does not divide": ([(2, 30, 8)], "the sequence length 30; use context=3, or sequences of 32"),
    "no sequence": ([(8,)], "the shape (8,), so there is no dimension 1"),
    "two lengths": ([(2, 16, 8), (2, 4, 8)], "another has full sequences of that length"),
}


@pytest.mark.parametrize("name", CANNOT_BE_CUT)
def test_inputs_that_cannot_be_sharded_are_rejected(name: str, monkeypatch: Any) -> None:
    shapes, line = CANNOT_BE_CUT[name]
    with pytest.raises(UserError, match=r"^context=4: ") as refusal:
        first_of_four(shapes, monkeypatch)
    assert line in str(refusal.value)


def test_labels_and_conditions_are_passed_in_full(monkeypatch: Any) -> None:
    assert first_of_four([(2, 16), (2,), (2, 4)], monkeypatch) == [(2, 4), (2,), (2, 4)]


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


class Fails(torch.autograd.Function):
    """In its backward pass, once a piece's gradient was handed on."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> Tensor:
        context.until_backward_ends(context.Piece(4, rank=0, size=2))
        raise MemoryError


def test_a_failed_backward_pass_restores_attention() -> None:
    """For example when it runs out of memory, because a callback searches the largest batch."""
    value, as_it_is = torch.randn(2, 4, 8, requires_grad=True), F.scaled_dot_product_attention
    with pytest.raises(MemoryError):
        Fails.apply(value).sum().backward()
    with context.working_on(None):
        pass
    assert context.Current.piece is None
    assert F.scaled_dot_product_attention is as_it_is
    assert torch.backends.mha.get_fastpath_enabled()
