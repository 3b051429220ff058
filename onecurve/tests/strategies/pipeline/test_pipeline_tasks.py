"""strategy=pipeline: tasks that nobody wrote for it, unusual layers, and weights used twice."""

from contextlib import redirect_stderr
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING, ZBV, Shared, largest_difference
from several_fits import (
    Case,
    OptimizesByHand,
    SavesAtEnd,
    Small,
    assert_equal,
    assert_rejected,
    fits,
    fits_alone,
    fits_in_ranks,
)
from torch import Tensor, nn
from torch.nn import functional as F

import onecurve
from onecurve.errors import UserError


class TwoViews(Small):
    """Calls its network twice; the second time with what came of the first."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        first = self.net(batch[0])
        second = self.net(batch[0] * first.mean(1, keepdim=True))
        loss = (first - second).square().mean() + F.mse_loss(first, batch[1])
        self.log("train/loss", loss)
        return loss


class ModuleOfLoss(Small):
    """Its loss is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.MSELoss()  # type: ignore[assignment]


class OtherLoss(Small):
    """Has a method of that name which takes something else, as many tasks do."""

    def loss(self, batch: Any) -> Tensor:  # type: ignore[override]
        return F.mse_loss(self(batch[0]), batch[1]) + self(batch[0]).square().mean()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train/loss", loss)
        return loss


class Attacked(Small):
    """Trains on inputs that it has moved along their own gradients."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss(self(inputs), batch[1]), inputs)
        loss = self.loss(self(batch[0] + 0.1 * gradient.sign()), batch[1])
        self.log("train/loss", loss)
        return loss


class TwoBackwards(OptimizesByHand):
    """Two backward passes over the same outputs."""

    def backward_passes(self, batch: Any) -> None:
        outputs = self(batch[0])
        for number in (0, 1):
            loss = F.mse_loss(outputs[:, number], batch[1][:, number])
            self.log(f"loss {number}", loss)
            self.manual_backward(loss, retain_graph=not number)


class OneWeightTwiceInAStage(Small):
    """Uses a layer with parameters twice, on one stage."""

    def network(self) -> nn.Module:
        again = nn.Linear(6, 6)
        layers = [again, nn.Tanh(), again, nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 2)]
        return nn.Sequential(*layers)


class Halve(nn.Module):
    """Like Dropout, a layer without parameters that does something in training alone."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / 2 if self.training else inputs


class OneActivation(Small):
    """Uses one such layer between all others, and a Flatten that is made anew."""

    def network(self) -> nn.Module:
        halve = Halve()
        layers = [nn.Linear(6, 8), halve, nn.Tanh(), nn.Linear(8, 8), halve, nn.Linear(8, 2)]
        return nn.Sequential(*layers)

    def layers(self) -> list[nn.Module]:
        return [nn.Flatten(), *self.net]


class Twice(nn.Module):
    """Returns a tuple, with a tensor that is not contiguous."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        return inputs, (2 * inputs).view(len(inputs), 2, 4).transpose(1, 2)


class Join(nn.Module):
    """Takes a tuple, as nn.Sequential passes it on, and changes a tensor of it in place."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        first, second = pair
        return first.relu_() + second.flatten(1).tanh()


class Tuples(Small):
    """Passes tuples from layer to layer, one of them from stage to stage."""

    def network(self) -> nn.Module:
        layers = [nn.Linear(6, 8), Twice(), Join(), nn.Linear(8, 8), Twice(), Join()]
        return nn.Sequential(*layers, nn.Linear(8, 2))


class Draws(nn.Linear):
    """Has a generator of its own, of which a copy is made where shapes are measured."""

    def __init__(self) -> None:
        super().__init__(6, 8)
        self.drawn = torch.Generator().manual_seed(0)

    def forward(self, inputs: Tensor) -> Tensor:
        noise = torch.rand(8, generator=self.drawn, dtype=self.weight.dtype, device="cpu")
        return super().forward(inputs) + 0 * noise.to(inputs.device)


class OneGenerator(Small):
    def network(self) -> nn.Module:
        return nn.Sequential(Draws(), nn.Tanh(), nn.Linear(8, 2))


class Noisy(Small):
    """Does something between its layers, but only in training mode."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.net[:2](inputs)
        if self.training:
            hidden = hidden + 0.1 * torch.randn_like(hidden)
        return self.net[2:](hidden)


class AsATuple(nn.Linear):
    def forward(self, inputs: Tensor) -> Any:
        return (super().forward(inputs),)


class ATupleOfOne(Small):
    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), AsATuple(6, 2))


class LayersOfAnother(Small):
    """Makes a layer with parameters each time it is asked."""

    def layers(self) -> list[nn.Module]:
        return [*self.net, nn.Linear(2, 2)]


class Normalized(Small):
    """Has statistics of its samples, of which a batch of six makes no micro-batch of one."""

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


class OfPositions(Small):
    """Has its layers take something else than what enters the task, with the samples second."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.TransformerEncoderLayer(6, 2, 8, 0.0) for _ in range(2)))

    def forward(self, inputs: Tensor) -> Tensor:
        positions = torch.stack([inputs, inputs.cos(), inputs.sin()])
        return self.net(self.blocks(positions).mean(0))


class Resized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 6))

    def forward(self, inputs: Tensor, size: tuple[int, ...]) -> Tensor:
        outputs: Tensor = self.layers(inputs.view(-1, *size))
        return outputs


class Remembering(Resized):
    @staticmethod
    @cache
    def positions(number: int) -> Tensor:
        return torch.arange(number).double()

    def forward(self, inputs: Tensor, size: tuple[int, ...]) -> Tensor:
        return super().forward(inputs + self.positions(*size), size)


class OfShapes(Small):
    """Calls each of its blocks with a shape."""

    block: type[nn.Module] = Resized

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.block() for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = block(inputs, inputs.shape[1:])
        return self.net(inputs)


class Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 6))

    def forward(self, inputs: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        placed = torch.cat([inputs[:, :1], inputs[:, 1:] + table], 1)
        outputs: Tensor = self.layers(placed)
        return outputs * mask


class OfTables(Small):
    """Calls its blocks with a table of as many rows as a batch has samples, and with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Placed() for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        positions = inputs.unsqueeze(1).repeat(1, 9, 1)
        table = torch.arange(48).view(8, 6).cos().to(inputs)
        mask = inputs.sign().unsqueeze(1)
        for block in self.blocks:
            positions = block(positions, table, mask)
        return self.net(positions.mean(1))


class Remembers(OfShapes):
    """Computes once what all of its blocks add."""

    block = Remembering


STRANGERS = (*(ModuleOfLoss, OtherLoss, Attacked, TwoBackwards, OfPositions, OfShapes, OfTables),)
LAYERS: dict[Any, dict[str, Any]] = {
    TwoViews: {"schedule": "gpipe"},
    OneActivation: {"schedule": ZBV},
    OneGenerator: {},
    Tuples: {"balance": [2, 5]},
    OneWeightTwiceInAStage: {"balance": [4, 2]},
}
REJECTED: dict[Any, str] = {
    LayersOfAnother: "the layer layers()[5] of LayersOfAnother has parameters that are none",
}
ONE_EPOCH = {"max_epochs": 1}


def case(module: type[Small], devices: int = 2, **options: Any) -> Case:
    pipeline = onecurve.Pipeline(**{"microbatches": 2, "timeout_seconds": 30, **options})
    return module, pipeline, {"devices": devices, **ONE_EPOCH}


@pytest.fixture(scope="session")
def single(shared: Shared) -> Any:
    return shared("strangers single", partial(fits_alone, *STRANGERS, *LAYERS, **ONE_EPOCH))


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> Any:
    cases = {
        module.__name__: case(module, **LAYERS.get(module, {}))
        for module in (*STRANGERS, *LAYERS, *REJECTED)
    }
    cases["TwoViews, 1f1b"] = case(TwoViews)
    cases["Normalized"] = case(Normalized, microbatches=5)
    return shared("strangers", partial(fits_in_ranks, cases))


@pytest.mark.compares
@pytest.mark.parametrize("module", [*STRANGERS, *LAYERS])
def test_it_is_trained_as_it_is(single: Any, outcomes: Any, module: Any) -> None:
    assert_equal(outcomes[module.__name__], single[module.__name__])


def test_a_schedule_takes_one_call_of_the_network(outcomes: dict[str, Any]) -> None:
    line = "TwoViews.training_step calls its network more than once; use Pipeline(schedule='gpipe')"
    assert_rejected(outcomes["TwoViews, 1f1b"], line)


def said_in(module: type[Small]) -> str:
    with redirect_stderr(StringIO()) as said:
        fits({"": case(module)})
    return said.getvalue()


def test_a_batch_that_cannot_be_told_from_a_table_passes_in_one_piece() -> None:
    said = warm_ranks.run("test_pipeline_tasks.said_in", (OfTables,), processes=2)
    assert said.count("the blocks in blocks get a tensor of 8 rows that is perhaps not of the") == 1


def test_no_micro_batch_is_too_small_for_batchnorm(outcomes: dict[str, Any]) -> None:
    """Of batches of 8, 8 and 6, as 5 micro-batches: 4, 4 and 3 of two samples, and not 6 of one."""
    assert len(outcomes["Normalized"]["train/loss"]) == 3


@pytest.mark.parametrize("module", REJECTED)
def test_what_needs_all_layers_is_rejected(outcomes: dict[str, Any], module: Any) -> None:
    assert_rejected(outcomes[module.__name__], REJECTED[module])


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Noisy, "Noisy uses layers, .* in another way than by calling net"),
        (ATupleOfOne, "returns a tuple of one tensor; return the tensor itself"),
        (Remembers, "calls one that keeps what it computed when it was measured without data"),
    ],
)
def test_so_is_what_one_rank_alone_notices(module: Any, words: str) -> None:
    *parts, options = case(module)
    with pytest.raises(UserError, match=words):
        onecurve.launch(fits, {"": (*parts, {**options, "is_alone": True})})


class TiedInside(nn.Module):
    """Uses one weight in two layers of its own, and one bias under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.bias = self.again = nn.Parameter(torch.zeros(6))
        self.register_buffer("scale", torch.full((6,), 0.5))
        self.register_buffer("same", self.scale)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = (self.first(inputs) + self.bias).tanh() * self.scale
        outputs: Tensor = self.second(hidden) + self.again
        return outputs


class Tied(Small):
    """Has such a layer on either stage, and keeps the last one under another name, too."""

    def __init__(self) -> None:
        super().__init__()
        self.last = self.net[-2]
        self.weight = self.last.first.weight

    def network(self) -> nn.Module:
        return nn.Sequential(TiedInside(), nn.Tanh(), TiedInside(), nn.Linear(6, 2))

    def layers(self) -> nn.Module:
        return self.net

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


@pytest.mark.compares
def test_it_is_trained_saved_and_read_as_one(tmp_path: Path) -> None:
    """An epoch, and one more from a file and from a folder of shards."""
    expected = fits_alone(Tied)["Tied"]["train/loss"]
    sharded = {"plugins": [onecurve.ShardedFolders()]}
    cases: dict[str, Case] = {}
    for name, plugins in (("file", {}), ("shards", sharded)):
        path = tmp_path / f"{name}.ckpt"
        saves = {"callbacks": [SavesAtEnd(path)], "max_epochs": 1, **plugins}
        cases[name] = (Tied, onecurve.Pipeline(timeout_seconds=20), saves)
        resumed = {"resume": path, **plugins}
        cases[f"from {name}"] = (Tied, onecurve.Pipeline(timeout_seconds=20), resumed)
    found = fits_in_ranks(cases)
    for name in ("file", "shards"):
        curve = found[name]["train/loss"] + found[f"from {name}"]["train/loss"]
        assert largest_difference(curve, expected) <= ROUNDING
    state = torch.load(tmp_path / "file.ckpt", weights_only=True)["state_dict"]
    for layer in ("net.0", "net.2", "last"):
        assert torch.equal(state[f"{layer}.first.weight"], state[f"{layer}.second.weight"])
    assert torch.equal(state["weight"], state["net.2.first.weight"])
