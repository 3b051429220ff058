"""strategy=pipeline: `forward` and its layers one after the other are the same, in each mode."""

import random
from typing import Any

import pytest
import torch
from conftest import ROUNDING, largest_difference
from lightning.pytorch import LightningModule
from several_fits import Case, Small, fits
from torch import Tensor, nn

import onecurve
from onecurve.strategies.layers import find_layers
from onecurve.strategies.pipeline.composition import check_composition
from onecurve.strategies.trial import report_changed


class Noisy(Small):
    """Does something between its layers, but only in training mode."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.net[:2](inputs)
        if self.training:
            hidden = hidden + 0.1 * torch.randn_like(hidden)
        return self.net[2:](hidden)


class Detached(Small):
    """Has the values of its layers, but trains only the last ones."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net[2:](self.net[:2](inputs).detach())


class ATupleOfOne(Small):
    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 2), Twice(count=1))


class LayersOfAnother(Small):
    """Makes a layer with parameters each time it is asked."""

    def layers(self) -> list[nn.Module]:
        return [*self.net, nn.Linear(2, 2)]


class OneWeightTwice(Small):
    """Uses a layer with parameters twice, on two stages."""

    def network(self) -> nn.Module:
        again = nn.Linear(6, 6)
        return nn.Sequential(again, nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), again, nn.Linear(6, 2))


class OneWeightTwiceInAStage(OneWeightTwice):
    """Uses it twice on one stage."""

    def network(self) -> nn.Module:
        again = nn.Linear(6, 6)
        layers = [again, nn.Tanh(), again, nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 2)]
        return nn.Sequential(*layers)


class OneActivation(Small):
    """Uses one Tanh between all its layers, and a Flatten that is made anew."""

    def network(self) -> nn.Module:
        tanh = nn.Tanh()
        return nn.Sequential(nn.Linear(6, 8), tanh, nn.Linear(8, 8), tanh, nn.Linear(8, 2))

    def layers(self) -> list[nn.Module]:
        return [nn.Flatten(), *self.net]


class Halve(nn.Module):
    """Like Dropout, a layer without parameters that does something in training alone."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs / 2 if self.training else inputs


class OneDropout(Small):
    """Uses one such layer twice."""

    def network(self) -> nn.Module:
        halve = Halve()
        return nn.Sequential(nn.Linear(6, 8), halve, nn.Tanh(), halve, nn.Linear(8, 2))


class Twice(nn.Module):
    """Returns its input so many times, as a tuple."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.count = count

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        return (inputs,) * self.count


class Join(nn.Module):
    """Takes a tuple, as nn.Sequential passes it on."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        first, second = pair
        return first.tanh() + second


class Tuples(Small):
    """Passes tuples from layer to layer, one of them from stage to stage."""

    def network(self) -> nn.Module:
        layers = [nn.Linear(6, 8), Twice(), Join(), nn.Linear(8, 8), Twice(), Join()]
        return nn.Sequential(*layers, nn.Linear(8, 2))


REFUSED: dict[Any, str] = {
    Noisy: "in training mode Noisy.forward gives something else than its layers net.0, net.1",
    Detached: "Detached.forward gives something else",
    ATupleOfOne: "returns a tuple of one tensor; return the tensor itself",
    LayersOfAnother: "the layer layers()[5] of LayersOfAnother has parameters that are none",
    OneWeightTwice: "layers net.0 and net.4 share a parameter, but are on stages 0 and 1",
}
EQUAL: dict[Any, dict[str, Any]] = {
    OneActivation: {"schedule": "zbv"},
    OneDropout: {},
    Tuples: {"balance": [2, 5]},
    OneWeightTwiceInAStage: {"balance": [4, 2]},
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Any]:
    """Each module under pipeline, in one start of two ranks."""
    cases: dict[str, Case] = {
        module.__name__: (module, onecurve.Pipeline(microbatches=2, **EQUAL.get(module, {})), {})
        for module in (*REFUSED, *EQUAL)
    }
    return onecurve.launch(fits, cases)


@pytest.mark.parametrize("module", REFUSED)
def test_another_composition_is_refused(outcomes: dict[str, Any], module: Any) -> None:
    refusal = outcomes[module.__name__]
    assert isinstance(refusal, str), "it was trained"
    assert refusal.startswith("strategy=pipeline: ")
    assert REFUSED[module] in refusal
    assert "\n" not in refusal


@pytest.mark.compares
@pytest.mark.parametrize("module", EQUAL)
def test_layers_may_be_used_again_and_pass_tuples(outcomes: dict[str, Any], module: Any) -> None:
    name = module.__name__
    single = onecurve.launch(fits, {name: (module, onecurve.Single(), {"devices": 1})}, devices=1)
    curves = [found[name]["train/loss"] for found in (single, outcomes)]
    assert len(curves[0]) == 6
    assert largest_difference(*curves) <= ROUNDING


class Stateful(LightningModule):
    """Has statistics, dropout and random numbers of other libraries."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(), Flip(), nn.Linear(6, 2), Counts())
        self.net.extend([Halve(), nn.BatchNorm1d(2)])

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)


class Counts(nn.Module):
    """Counts its calls in training mode."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.calls = self.calls + 1
        return inputs


class Flip(nn.Module):
    """Negates at random."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * (1 if random.random() < 0.5 else -1)


@pytest.mark.parametrize("samples", [1, 5])
def test_the_check_leaves_nothing_behind(samples: int) -> None:
    module = Stateful().train()
    module.net[6].eval()
    layers = find_layers(module)
    assert layers is not None
    before = {name: value.clone() for name, value in module.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    inputs = torch.randn(samples, 6, generator=torch.Generator().manual_seed(0))
    kept = inputs.clone()
    changed = check_composition(module, layers, (inputs,))
    assert torch.equal(inputs, kept)
    after = module.state_dict()
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert changed == [f"net.0.{name}" for name in statistics] + ["net.4.calls"]
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert all(part.training == (part is not module.net[6]) for part in module.modules())


def test_what_changes_with_each_micro_batch_is_announced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report_changed("pipeline", "micro-batch", [])
    assert capsys.readouterr().err == ""
    report_changed("pipeline", "micro-batch", [f"net.0.{name}" for name in "abcde"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("strategy=pipeline: net.0.a, net.0.b, net.0.c and 2 more will differ")
