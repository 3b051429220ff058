"""What would be wrong on pieces of a sequence is refused in one line, before training."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import ROUNDING
from cut_sequences import LENGTH, WIDTH, Attention, Embedding, Encoder, Masked, OfTorch, some
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import onecurve
from onecurve.errors import UserError
from onecurve.strategies.context.attention import until_backward_ends, working_on
from onecurve.strategies.context.axis import Piece, current
from onecurve.strategies.context.check import Simulated, check_pieces
from onecurve.strategies.context.sequence import cut_along, whole_along


class Network(LightningModule):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers)

    def forward(self, *inputs: Tensor) -> Any:
        return self.net(*inputs)


class CountsFromZero(Embedding):
    """And its places are all zeros before training, as those of many are."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.places.weight)

    def forward(self, text: Tensor) -> Tensor:
        return self.tokens(text) + self.places.weight[: text.shape[1]]


class Convolution(nn.Conv1d):
    """Brings neighbours together."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.transpose(1, 2)).transpose(1, 2)


class Recurrent(nn.GRU):
    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(inputs)[0]


class Hidden(nn.Module):
    """A layer behind weights that are zero before training."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.scale = layer, nn.Parameter(torch.zeros(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.scale * self.layer(inputs)


class Pooled(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.mean(1)[..., :5]


class Latents(nn.Module):
    """Some queries of its own see the sequence, and each position of that sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 5, WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        latents = self.latents.expand(len(inputs), -1, -1)
        latents = F.scaled_dot_product_attention(latents, inputs, inputs)
        latents = F.scaled_dot_product_attention(latents, latents, latents)
        return F.scaled_dot_product_attention(inputs, latents, latents)


class SometimesAttention(Attention):
    """Branches on where it is."""

    def forward(self, inputs: Tensor, *_: Any) -> Tensor:
        return super().forward(inputs) if onecurve.positions(inputs)[0] == 0 else inputs


def convolution() -> nn.Module:
    return Convolution(WIDTH, WIDTH, 3, padding=1)


def of_its_length() -> nn.Module:
    return Masked(lambda inputs: some(inputs.shape[1], inputs.shape[1]))


ELSE = "gives something else on pieces of the sequence than on the whole; positions may meet in"
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "positions": (CountsFromZero, ELSE),
    "convolution": (convolution, ELSE),
    "hidden convolution": (lambda: Hidden(convolution()), ELSE),
    "RNN": (lambda: Recurrent(WIDTH, WIDTH, batch_first=True), ELSE),
    "torch's attention": (OfTorch, ELSE),
    "mask": (of_its_length, "an attention mask has the shape (3, 3), made of a piece"),
    "mean": (Pooled, "the network returns the shape (2, 5) for 3 of 12 positions"),
    "branch": (SometimesAttention, "Network.forward fails on a piece of the sequence ("),
}


def inputs_of(layer: nn.Module) -> Tensor:
    torch.manual_seed(0)
    is_text = isinstance(layer, Embedding)
    return torch.randint(10, (3, LENGTH)) if is_text else torch.randn(3, LENGTH, WIDTH)


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_its_neighbours_is_refused(name: str) -> None:
    layer = REFUSED[name][0]()
    before = [parameter.clone() for parameter in layer.parameters()]
    with pytest.raises(UserError) as refusal:
        check_pieces(Network(layer), (inputs_of(layer),), 4)
    line = str(refusal.value)
    assert line.startswith("strategy.context=4: ")
    assert REFUSED[name][1] in line
    assert "strategy.context=1" in line.partition("; ")[2]
    assert "\n" not in line
    assert all(map(torch.equal, before, layer.parameters()))
    assert layer.training


@pytest.mark.parametrize(
    "make", [Embedding, Attention, Encoder, Latents, lambda: Hidden(Latents())]
)
def test_what_does_not_is_let_through(make: Callable[[], nn.Module]) -> None:
    layer = make()
    check_pieces(Network(layer), (inputs_of(layer),), 4)
    assert current() is None


def test_a_network_for_one_length_is_tried_with_that() -> None:
    """Some positions would do, but a mask does not fit them."""
    length = 64 * 4
    inputs = torch.randn(1, length, WIDTH)
    check_pieces(Network(Masked(lambda _: some(length, length))), (inputs,), 4)


CANNOT_BE_CUT: dict[str, tuple[list[tuple[int, ...]], str]] = {
    "does not divide": (
        [(2, 30, 8)],
        "the sequence of 30; use strategy.context=3, or sequences of 32",
    ),
    "no sequence": ([(8,)], "the shape (8,), and no dimension 1"),
    "two lengths": ([(2, 16, 8), (2, 4, 8)], "another has whole sequences of that length"),
}


@pytest.mark.parametrize("name", CANNOT_BE_CUT)
def test_inputs_that_cannot_be_cut_are_refused(name: str) -> None:
    shapes, line = CANNOT_BE_CUT[name]
    with pytest.raises(UserError, match=r"^strategy.context=4: ") as refusal:
        cut_along(tuple(torch.zeros(shape) for shape in shapes), Simulated(4))
    assert line in str(refusal.value)


def test_what_is_no_sequence_is_given_whole() -> None:
    text, labels, condition = torch.zeros(2, 16), torch.zeros(2), torch.zeros(2, 4)
    shapes = [tuple(piece.shape) for piece in cut_along((text, labels, condition), Simulated(4))]
    assert shapes == [(2, 4), (2,), (2, 4)]


def test_positions_need_no_strategy() -> None:
    assert onecurve.positions(torch.zeros(3, 5)).tolist() == [0, 1, 2, 3, 4]
    with FakeTensorMode():
        assert onecurve.positions(torch.zeros(3, 5, device="cuda")).device.type == "cuda"
    axis = Simulated(4)
    axis._of_thread.rank = 3
    with working_on(Piece(axis, 5)):
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
        until_backward_ends(Piece(Simulated(2), 4))
        raise MemoryError


def test_a_backward_pass_that_fails_leaves_nothing_on() -> None:
    """As one does that runs out of memory, where a callback looks for the largest batch."""
    value, as_it_is = torch.randn(2, 4, WIDTH, requires_grad=True), F.scaled_dot_product_attention
    with pytest.raises(MemoryError):
        Fails.apply(value).sum().backward()
    with working_on(None):
        pass
    assert current() is None
    assert F.scaled_dot_product_attention is as_it_is
    assert torch.backends.mha.get_fastpath_enabled()


def test_outputs_are_put_together_in_any_tree() -> None:
    axis = Simulated(3)

    def run() -> Any:
        piece = cut_along((torch.arange(12.0).view(2, 6),), axis)[0]
        return whole_along({"a": (piece, 2 * piece[..., None]), "b": None}, axis, 6)

    found = axis.run(run)
    assert found["b"] is None
    assert (found["a"][0] - torch.arange(12.0).view(2, 6)).abs().max() <= ROUNDING
    assert found["a"][1].shape == (2, 6, 1)
