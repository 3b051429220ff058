"""strategy=pipeline: blocks in an nn.ModuleList, called one by one by code that nobody changed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from conftest import Shared
from several_fits import Case, Small, assert_equal, assert_rejected, fits_alone, fits_in_ranks
from torch import Tensor, nn

import onecurve


class Block(nn.Module):
    """Mixes positions, where a mask lets it, and adds what a condition says."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.pass_on = nn.Linear(6, 6)

    def forward(self, hidden: Tensor, *, mask: Tensor, condition: Tensor | None = None) -> Tensor:
        mixed = self.mix((hidden * mask).transpose(1, 2)).transpose(1, 2)
        if condition is not None:
            mixed = mixed + condition
        return hidden + self.pass_on(mixed).tanh()


class Encoder(nn.Module):
    """Calls its blocks with a mask for each sample, and with positions that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 24)
        self.positions = nn.Parameter(torch.linspace(-1, 1, 24).view(1, 4, 6))
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs).view(-1, 4, 6)
        mask = (hidden.detach().sum(-1, keepdim=True) > 0).to(hidden.dtype)
        for block in self.each():
            hidden = block(hidden, mask=mask, condition=self.positions)
        return hidden.mean(1)

    def each(self) -> Any:
        return self.blocks


class KeyedEncoder(Encoder):
    """Has them in a dictionary within another."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"blocks": nn.ModuleDict(self.blocks.named_children())})
        del self.blocks

    def each(self) -> Any:
        return self.body["blocks"].values()  # type: ignore[operator]


class Named(Small):
    """Calls its network by name; the weight before the blocks is used behind them again."""

    def network(self) -> nn.Module:
        return Encoder()

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(self.net(inputs), self.net.enter.weight[:2])


class Looks(Small):
    """Looks at another network's outputs in each block, as a decoder does."""

    def network(self) -> nn.Module:
        return nn.Linear(6, 24)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.leave = nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        seen = self.net(inputs).view(-1, 4, 6)
        hidden = seen.detach().cos()
        for index in range(3):
            hidden = self.blocks[index](hidden, mask=torch.ones(4, 1), condition=seen)
        return self.leave(hidden.mean(1))


class InItsStep(Looks):
    """Has the loop in its step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        hidden = self.net(batch[0]).view(-1, 4, 6)
        for block in self.blocks:
            hidden = block(hidden, mask=torch.ones(4, 1))
        loss = self.loss(self.leave(hidden.mean(1)), batch[1])
        self.log("train/loss", loss)
        return loss


class Passes(nn.Module):
    """Returns what the next one is given, beside what they work on."""

    def __init__(self, is_first: bool) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.bias = nn.Parameter(torch.ones(1, 4, 1)) if is_first else None

    def forward(self, hidden: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, None]:
        bias = self.bias * 2 if bias is None else bias
        return (self.mix(hidden.transpose(1, 2)).transpose(1, 2) + bias).tanh(), bias, None


class Passing(Small):
    """A first block makes what all others use."""

    def network(self) -> nn.Module:
        return nn.ModuleList(Passes(is_first=not number) for number in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden, bias = torch.stack([inputs, inputs.cos(), inputs.sin(), -inputs], 1), None
        for block in self.net:
            hidden, bias, _ = block(hidden, bias)
        return hidden.mean(1)[:, :2]


class BothStacks(Small):
    """Has an encoder and a decoder, of which each rank holds a part."""

    def network(self) -> nn.Module:
        return nn.Transformer(6, 2, 2, 3, 8, dropout=0.0, batch_first=True)

    def __init__(self) -> None:
        super().__init__()
        self.leave = nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        seen = torch.stack([inputs, inputs.cos(), inputs.sin(), -inputs], 1)
        return self.leave(self.net(seen, seen[:, :3].tanh()).mean(1))

    def on_train_start(self) -> None:
        for stack in (self.net.encoder, self.net.decoder):
            remote = [layer.linear1.weight.is_meta for layer in stack.layers]
            assert any(remote) == isinstance(self.trainer.strategy, onecurve.Pipeline)
            assert not all(remote)


class Keyed(Named):
    """Trains its blocks alone, which are in an nn.ModuleDict."""

    def __init__(self) -> None:
        super().__init__()
        self.net.enter.requires_grad_(False)

    def network(self) -> nn.Module:
        return KeyedEncoder()


class Otherwise(Named):
    """Calls its blocks in another way."""

    def __init__(self, way: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        net = self.net
        net.forward = lambda inputs: way(net, net.enter(inputs).view(-1, 4, 6)).mean(1)


MASK = torch.ones(4, 1)


def one_after_the_other(blocks: Any, hidden: Tensor, **options: Any) -> Tensor:
    for block in blocks:
        hidden = block(hidden, mask=MASK, **options)
    return hidden


def skips(net: Any, hidden: Tensor) -> Tensor:
    return one_after_the_other([*net.blocks][::2], hidden)


def stops(net: Any, hidden: Tensor) -> Tensor:
    return one_after_the_other([*net.blocks][:2], hidden)


def calls_side_by_side(net: Any, hidden: Tensor) -> Tensor:
    """As experts are."""
    return torch.stack([block(hidden, mask=MASK) for block in net.blocks]).mean(0)


def gives_a_trained_number(net: Any, hidden: Tensor) -> Tensor:
    return one_after_the_other(net.blocks, hidden, condition=net.positions.sum())


def collects(net: Any, hidden: Tensor) -> Tensor:
    """Uses what leaves each of its blocks."""
    found = []
    for block in net.blocks:
        found.append(hidden := block(hidden, mask=MASK))
    return torch.stack(found).mean(0)


class OwnCache:
    """No tensor, and no plain value."""


def caches(net: Any, hidden: Tensor) -> Tensor:
    return one_after_the_other(net.blocks, hidden, condition=OwnCache())


class OfResiduals(Small):
    """Its own blocks, each of which is given what the ones before leave over, as in N-BEATS."""

    def __init__(self) -> None:
        super().__init__()
        del self.net
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        forecast = torch.zeros_like(inputs)
        for block in self.blocks:
            explained = block(inputs)
            inputs, forecast = inputs - explained, forecast + explained
        return forecast[:, :2]


TRAINED = (Named, Looks, InItsStep, Passing, BothStacks, Keyed)
REJECTED: dict[Any, str] = {
    skips: "does not call them one after the other",
    stops: "calls 2 of 4 of them",
    calls_side_by_side: "calls one without what the one before has returned",
    gives_a_trained_number: "calls one with a tensor () that is trained and of no sample",
    collects: "in another way than by calling net",
    caches: "calls one with a OwnCache (give generate use_cache=False); return the layers",
    OfResiduals: "forward uses what passes between them, or skips some (let blocks return",
}


@pytest.fixture(scope="session")
def single(shared: Shared) -> Any:
    return shared("blocks single", partial(fits_alone, *TRAINED, max_epochs=1))


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> Any:
    modules = {module.__name__: module for module in TRAINED}
    modules |= {
        way.__name__: way if isinstance(way, type) else partial(Otherwise, way) for way in REJECTED
    }
    cases: dict[str, Case] = {
        name: (module, onecurve.Pipeline(microbatches=3, timeout_seconds=30), {"max_epochs": 1})
        for name, module in modules.items()
    }
    return shared("blocks", partial(fits_in_ranks, cases))


@pytest.mark.compares
@pytest.mark.parametrize("module", TRAINED)
def test_it_is_trained_as_it_is(single: Any, outcomes: Any, module: Any) -> None:
    assert_equal(outcomes[module.__name__], single[module.__name__])


@pytest.mark.compares
@pytest.mark.slow
def test_it_is_on_a_mesh(single: Any) -> None:
    options: Any = {"microbatches": 2, "timeout_seconds": 60}
    options["plan"] = {"*.pass_on": "colwise_gather"}
    cases: dict[str, Case] = {
        module.__name__: (
            module,
            onecurve.mesh(pipeline=2, tensor=2, **options),
            {"devices": 4, "max_epochs": 1},
        )
        for module in (Named, Looks)
    }
    for name, found in fits_in_ranks(cases, processes=4).items():
        assert_equal(found, single[name])


@pytest.mark.parametrize("way", REJECTED)
def test_what_is_no_chain_of_blocks_is_rejected(outcomes: Any, way: Any) -> None:
    assert_rejected(outcomes[way.__name__], REJECTED[way])
