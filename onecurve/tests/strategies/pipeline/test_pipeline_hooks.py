"""strategy=pipeline: hooks, optimizers, `all_gather` see what is of the whole, or are refused."""

from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from conftest import Shared
from several_fits import (
    Case,
    OptimizesByHand,
    Small,
    assert_equal,
    assert_rejected,
    fits_alone,
    fits_in_ranks,
)
from torch import Tensor
from torch.optim import Optimizer

import onecurve


class ChangesEach(Small):
    """Asks for gradients that other ranks have, and changes each by itself."""

    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad.clamp_(-0.01, 0.01)


class ChangesByHand(OptimizesByHand):
    """Changes each gradient by itself, as gradient noise does."""

    def backward_passes(self, batch: Any) -> None:
        super().backward_passes(batch)
        self.change()

    def change(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad.clamp_(-0.01, 0.01)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class ScalesByHand(ChangesByHand):
    """Takes a norm over all gradients, as sharpness-aware minimization does."""

    def change(self) -> None:
        given = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in given]).norm()
        for gradient in given:
            gradient.div_(norm)


class SumsUpInPlace(Small):
    """Adds squares to a tensor of its own, which PyTorch leaves as it is by one without data."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        total = torch.zeros(())
        for parameter in self.parameters():
            assert parameter.grad is not None
            total += parameter.grad.square().sum()
        self.log("norm", total.sqrt())


class WithTeacher(Small):
    """Has a second network, which is the first one's after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = self.network()

    def on_train_batch_end(self, *_: Any) -> None:
        for mean, weight in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            mean.data = weight.data


class Prepared(Optimizer):
    """Has the state of its parameters before its first step."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3})
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["sum"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure()
        for weight in self.param_groups[0]["params"]:
            weight.sub_(1e-3 * self.state[weight]["sum"].add_(weight.grad))
        return loss


class PreparesItsOptimizer(Small):
    def configure_optimizers(self) -> Any:
        return Prepared(self.parameters())


REFUSED: dict[Any, str] = {
    SumsUpInPlace: "on_before_optimizer_step (test_pipeline_hooks.py:",
    WithTeacher: "for an average of weights",
    ScalesByHand: "what passes between them, or their parameters or gradients, in another way",
}


class Clips(Small):
    """Clips as Lightning's documentation shows it, harder from the second epoch on."""

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        largest = 0.1 if self.current_epoch else 0.2
        self.clip_gradients(optimizer, largest, "norm")


class AsksTheStrategy(Small):
    """Logs the norm of all gradients, and numbers that follow from all samples."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        sums = self.all_gather({"all": batch[1].sum()})["all"]
        self.log("sum", sums.sum(), batch_size=1)
        return super().training_step(batch, batch_idx)

    def on_after_backward(self) -> None:
        strategy: Any = self.trainer.strategy
        self.log("norm", strategy.gradient_norm(), batch_size=1)


class GoesBack(Small):
    """Keeps a copy of its state, and starts each epoch from it."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 0:
            self.first = deepcopy(self.state_dict())
        self.load_state_dict(self.first)


EXACT = [Clips, AsksTheStrategy, ChangesEach, ChangesByHand, GoesBack, PreparesItsOptimizer]


def pipeline(**options: Any) -> onecurve.Pipeline:
    return onecurve.Pipeline(microbatches=2, timeout_seconds=30, **options)


@pytest.fixture(scope="session")
def single(shared: Shared) -> Any:
    return shared("hooks single", partial(fits_alone, *EXACT))


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> Any:
    cases: dict[str, Case] = {
        module.__name__: (module, pipeline(), {}) for module in (*REFUSED, *EXACT)
    }
    return shared("hooks", partial(fits_in_ranks, cases))


@pytest.mark.parametrize("module", REFUSED)
def test_what_needs_all_gradients_is_refused(outcomes: Any, module: Any) -> None:
    refusal = outcomes[module.__name__]
    assert_rejected(refusal, REFUSED[module])
    assert "strategy=DDP()" in refusal or "strategy=FSDP()" in refusal


@pytest.mark.compares
@pytest.mark.parametrize("module", EXACT)
def test_what_asks_the_strategy_gets_the_whole(outcomes: Any, single: Any, module: Any) -> None:
    assert_equal(outcomes[module.__name__], single[module.__name__], epochs=2)


@pytest.mark.compares
@pytest.mark.slow
def test_replicas_have_averaged_before_a_hook_looks(single: Any) -> None:
    """Four ranks, two pipelines."""
    case: Case = (AsksTheStrategy, pipeline(replicas=2), {"devices": 4})
    found = fits_in_ranks({"": case}, processes=4)[""]
    assert_equal(found, single["AsksTheStrategy"], epochs=2)
