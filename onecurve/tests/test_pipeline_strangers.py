"""strategy=pipeline: tasks that nobody wrote for it, and networks of unusual layers."""

from typing import Any

import pytest
import torch
from conftest import ZBV, Shared
from several_fits import Case, Small, assert_equal, assert_rejected, fits
from torch import Tensor, nn
from torch.nn import functional as F

import onecurve
from onecurve.errors import UserError


class Inline(Small):
    """Calls its network by name, and has its loss in the step."""

    loss: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss


class Beside(Small):
    """Has layers and a parameter beside its network, before it and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(self.enter(inputs)) * self.scale


class TwoViews(Small):
    """Calls its network twice; the second time with what came of the first."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        first = self.net(batch[0])
        second = self.net(batch[0] * first.mean(1, keepdim=True))
        loss = (first - second).square().mean() + F.mse_loss(first, batch[1])
        self.log("train/loss", loss)
        return loss


class Summed(Small):
    """A loss that is no mean over samples."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum() * 0.01


class Contrastive(Small):
    """A loss between the samples of a batch."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs @ targets.T, torch.arange(len(outputs)))


class ModuleOfLoss(Small):
    """Its loss is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = nn.MSELoss()  # type: ignore[assignment]


class Adversarial(Small):
    """Two networks, two optimizers, several backward passes in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.critic = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def configure_optimizers(self) -> Any:
        networks = (self.net, self.critic)
        return [torch.optim.Adam(each.parameters(), lr=0.01) for each in networks]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        makes, tells = self.optimizers()
        self.toggle_optimizer(makes)
        loss = F.softplus(-self.critic(self.net(batch[0]))).mean()
        self._step(makes, "made", loss)
        self.toggle_optimizer(tells)
        made = self.critic(self.net(batch[0]).detach())
        self._step(tells, "told", (F.softplus(made) + F.softplus(-self.critic(batch[1]))).mean())

    def _step(self, optimizer: Any, name: str, loss: Tensor) -> None:
        self.log(name, loss)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)


class Attacked(Small):
    """Trains on inputs that it has moved along their own gradients."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss(self(inputs), batch[1]), inputs)
        loss = self.loss(self(batch[0] + 0.1 * gradient.sign()), batch[1])
        self.log("train/loss", loss)
        return loss


class TwoBackwards(Small):
    """Two backward passes over the same outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        outputs = self(batch[0])
        for number in (0, 1):
            loss = F.mse_loss(outputs[:, number], batch[1][:, number])
            self.log(f"loss {number}", loss)
            self.manual_backward(loss, retain_graph=not number)
        optimizer.step()


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


class ATupleOfOne(Small):
    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 2), Twice(count=1))


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


class Penalized(Small):
    """Adds the size of all weights, which no rank has."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        weights = sum(weight.square().sum() for weight in self.parameters())
        return super().training_step(batch, batch_idx) + 0.01 * weights


class PenalizedInPlace(Small):
    """Sums up in a tensor of its own, which PyTorch leaves as it is by a tensor without data."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        total = torch.zeros(())
        for weight in self.parameters():
            total += weight.abs().sum()
        return super().training_step(batch, batch_idx) + 0.01 * total


class WithTeacher(Small):
    """Has a second network, whose weights follow those of the first within the step."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.ParameterList(weight.detach().clone() for weight in self.net.parameters())
        self.teacher.requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        for mean, weight in zip(self.teacher, self.net.parameters(), strict=True):
            mean.data.mul_(0.9).add_(weight.data, alpha=0.1)
        return super().training_step(batch, batch_idx)


class OfGradients(Small):
    """Takes a gradient of a gradient."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(self(inputs).sum(), inputs, create_graph=True)
        return slope.square().mean()


STRANGERS = (
    *(Inline, Beside, TwoViews, Summed, Contrastive, ModuleOfLoss),
    *(Adversarial, Attacked, TwoBackwards, OfPositions),
)
LAYERS: dict[Any, dict[str, Any]] = {
    OneActivation: {"schedule": ZBV},
    OneDropout: {},
    OneGenerator: {},
    Tuples: {"balance": [2, 5]},
    OneWeightTwiceInAStage: {"balance": [4, 2]},
}
REFUSED: dict[Any, str] = {
    **dict.fromkeys(
        (Penalized, PenalizedInPlace, WithTeacher), "in another way than by calling net"
    ),
    OfGradients: "create_graph=True",
    LayersOfAnother: "the layer layers()[5] of LayersOfAnother has parameters that are none",
    OneWeightTwice: "layers net.0 and net.4 share a parameter, but are on stages 0 and 1",
}
OTHER_WAYS: dict[str, dict[str, Any]] = {
    "gpipe": {"schedule": "gpipe"},
    "zbv": {"schedule": ZBV},
    "replicas": {"replicas": 2, "schedule": "gpipe"},
}


def pipeline(**options: Any) -> onecurve.Pipeline:
    return onecurve.Pipeline(microbatches=2, timeout_seconds=30, **options)


@pytest.fixture(scope="session")
def single(shared: Shared) -> dict[str, Any]:
    options = {"devices": 1}
    cases: dict[str, Case] = {
        module.__name__: (module, onecurve.Single(), options) for module in (*STRANGERS, *LAYERS)
    }
    alone: dict[str, Any] = shared(
        "strangers single", lambda: onecurve.launch(fits, cases, devices=1)
    )
    return alone


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> dict[str, Any]:
    """Each module under pipeline, in one start of two ranks."""
    cases: dict[str, Case] = {
        module.__name__: (module, pipeline(**LAYERS.get(module, {})), {})
        for module in (*STRANGERS, *LAYERS, *REFUSED)
    }
    ranks: dict[str, Any] = shared("strangers", lambda: onecurve.launch(fits, cases))
    return ranks


@pytest.fixture(scope="session")
def by_schedule(shared: Shared) -> dict[str, Any]:
    cases: dict[str, Case] = {
        f"{module.__name__} {way}": (module, pipeline(**OTHER_WAYS[way]), {})
        for way in ("gpipe", "zbv")
        for module in STRANGERS
    }
    ranks: dict[str, Any] = shared("strangers by schedule", lambda: onecurve.launch(fits, cases))
    return ranks


@pytest.mark.compares
@pytest.mark.parametrize("module", [*STRANGERS, *LAYERS])
def test_it_is_trained_as_it_is(
    single: dict[str, Any], outcomes: dict[str, Any], module: Any
) -> None:
    assert_equal(outcomes[module.__name__], single[module.__name__])


@pytest.mark.compares
@pytest.mark.long
@pytest.mark.parametrize("way", ["gpipe", "zbv"])
@pytest.mark.parametrize("module", STRANGERS)
def test_it_is_by_any_schedule(
    single: dict[str, Any], by_schedule: dict[str, Any], module: Any, way: str
) -> None:
    assert_equal(by_schedule[f"{module.__name__} {way}"], single[module.__name__])


@pytest.mark.compares
@pytest.mark.long
def test_it_is_by_pipelines_side_by_side(single: dict[str, Any]) -> None:
    """Four ranks, two pipelines; a loss between samples is that of each share there."""
    modules = [each for each in STRANGERS if each not in (TwoViews, Summed, Contrastive)]
    cases: dict[str, Case] = {
        module.__name__: (module, pipeline(**OTHER_WAYS["replicas"]), {"devices": 4})
        for module in modules
    }
    for name, found in onecurve.launch(fits, cases, devices=4).items():
        assert_equal(found, single[name])


def test_no_micro_batch_is_too_small_for_batchnorm() -> None:
    """Of batches of 8, 8 and 6, as 4 micro-batches: 2 of 3."""
    case: Case = (Normalized, onecurve.Pipeline(microbatches=4, timeout_seconds=30), {})
    found = onecurve.launch(fits, {"": case})[""]
    assert len(found["train/loss"]) == 6


@pytest.mark.parametrize("module", REFUSED)
def test_what_needs_all_layers_is_refused(outcomes: dict[str, Any], module: Any) -> None:
    assert_rejected(outcomes[module.__name__], REFUSED[module])


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Noisy, "Noisy uses layers, .* in another way than by calling net"),
        (ATupleOfOne, "returns a tuple of one tensor; return the tensor itself"),
    ],
)
def test_so_is_what_one_rank_alone_notices(module: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        onecurve.launch(fits, {"": (module, pipeline(), {"is_alone": True})})
