"""strategy=pipeline: blocks in an nn.ModuleList, called one by one by code that nobody changed."""

from typing import Any

import pytest
import torch
from conftest import Shared, one_of_a_kind
from several_fits import Case, Small, assert_equal, assert_rejected, fits
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
    """Has its blocks in an nn.ModuleDict."""

    def network(self) -> nn.Module:
        return KeyedEncoder()


class Frozen(Named):
    """Trains its blocks alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net.enter.requires_grad_(False)


class Skips(Named):
    """Leaves a block out."""

    def network(self) -> nn.Module:
        network = Encoder()
        network.forward = self.passed  # type: ignore[method-assign]
        return network

    def passed(self, inputs: Tensor) -> Tensor:
        hidden = self.net.enter(inputs).view(-1, 4, 6)
        for block in [*self.net.blocks][::2]:
            hidden = block(hidden, mask=torch.ones(4, 1))
        return hidden.mean(1)


class Stops(Skips):
    """Leaves the last ones out."""

    def passed(self, inputs: Tensor) -> Tensor:
        hidden = self.net.enter(inputs).view(-1, 4, 6)
        for block in [*self.net.blocks][:2]:
            hidden = block(hidden, mask=torch.ones(4, 1))
        return hidden.mean(1)


class Scales(Skips):
    """Does something between its blocks."""

    def passed(self, inputs: Tensor) -> Tensor:
        hidden = self.net.enter(inputs).view(-1, 4, 6)
        for block in self.net.blocks:
            hidden = block(hidden, mask=torch.ones(4, 1)) * 0.9
        return hidden.mean(1)


class SideBySide(Skips):
    """Gives each of its blocks the same, as experts are."""

    def passed(self, inputs: Tensor) -> Tensor:
        hidden = self.net.enter(inputs).view(-1, 4, 6)
        found = [block(hidden, mask=torch.ones(4, 1)).mean(1) for block in self.net.blocks]
        return torch.stack(found).mean(0)


class Tempered(Skips):
    """Gives its blocks a number that it trains, of no sample."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def passed(self, inputs: Tensor) -> Tensor:
        hidden = self.net.enter(inputs).view(-1, 4, 6)
        for block in self.net.blocks:
            hidden = block(hidden, mask=torch.ones(4, 1), condition=self.temperature)
        return hidden.mean(1)


class Collects(Skips):
    """Uses what leaves each of its blocks."""

    def passed(self, inputs: Tensor) -> Tensor:
        hidden = self.net.enter(inputs).view(-1, 4, 6)
        found = []
        for block in self.net.blocks:
            hidden = block(hidden, mask=torch.ones(4, 1))
            found.append(hidden.mean(1))
        return torch.stack(found).mean(0)


TRAINED = (Named, Looks, InItsStep, Passing, BothStacks, Keyed, Frozen)
REJECTED: dict[Any, str] = {
    Skips: "does not call them one after the other",
    Stops: "calls 2 of 4 of them",
    Scales: "uses what passes between them",
    SideBySide: "calls one without what the one before has returned",
    Tempered: "calls one with a tensor () that is trained and of no sample",
    Collects: "uses layers, or their parameters or gradients, in another way",
}


@pytest.fixture(scope="session")
def single(shared: Shared) -> dict[str, Any]:
    cases: dict[str, Case] = {
        module.__name__: (module, onecurve.Single(), {"devices": 1}) for module in TRAINED
    }
    alone: dict[str, Any] = shared("blocks single", lambda: onecurve.launch(fits, cases, devices=1))
    return alone


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> dict[str, Any]:
    """Each module in one start of two ranks."""
    cases: dict[str, Case] = {
        module.__name__: (module, onecurve.Pipeline(microbatches=3, timeout_seconds=30), {})
        for module in (*TRAINED, *REJECTED)
    }
    ranks: dict[str, Any] = shared("blocks", lambda: onecurve.launch(fits, cases))
    return ranks


@pytest.mark.compares
@pytest.mark.parametrize("module", TRAINED)
def test_it_is_trained_as_it_is(
    single: dict[str, Any], outcomes: dict[str, Any], module: Any
) -> None:
    assert_equal(outcomes[module.__name__], single[module.__name__])


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize("axis", one_of_a_kind(["replicate", "shard", "tensor"], kept=["tensor"]))
def test_it_is_on_a_mesh(single: dict[str, Any], axis: str) -> None:
    options: dict[str, Any] = {axis: 2}
    if axis == "tensor":
        options["plan"] = {"*.pass_on": "colwise_gather"}

    def made() -> Any:
        return onecurve.mesh(pipeline=2, microbatches=2, timeout_seconds=60, **options)

    cases: dict[str, Case] = {
        module.__name__: (module, made(), {"devices": 4}) for module in (Named, Looks)
    }
    for name, found in onecurve.launch(fits, cases, devices=4).items():
        assert_equal(found, single[name])


@pytest.mark.parametrize("module", REJECTED)
def test_what_is_no_chain_of_blocks_is_rejected(outcomes: dict[str, Any], module: Any) -> None:
    assert_rejected(outcomes[module.__name__], REJECTED[module])
