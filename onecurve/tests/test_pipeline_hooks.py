"""strategy=pipeline: hooks, optimizers, `all_gather` see what is of the whole, or are refused."""

from typing import Any

import pytest
import torch
from conftest import ROUNDING, Shared, largest_difference
from lightning.pytorch import Callback
from lightning.pytorch.utilities import grad_norm
from several_fits import Case, OptimizesByHand, Small, fits
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

import onecurve


class ClipsByHand(Small):
    """Clips by PyTorch's own function, which every rank calls for its layers."""

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        clip_grad_norm_(self.parameters(), 0.1)


class LogsNorms(Small):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log_dict(grad_norm(self, norm_type=2))


class ChangesEach(Small):
    """Asks for gradients that other ranks have, and changes each by itself."""

    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad.clamp_(-0.01, 0.01)


class Norms(Callback):
    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.take(module)

    def take(self, module: Any) -> None:
        module.log_dict(grad_norm(module, norm_type=2))


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


class ScalesInStep(Small):
    """The same between the backward pass and the step of automatic optimization."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
        closure()
        ScalesByHand.change(self)  # type: ignore[arg-type]
        optimizer.step()


class ClampsByHooks(Small):
    """A schedule would call them for each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


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


class LineSearch(Small):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.parameters(), lr=0.01)


REFUSED: dict[Any, str] = {
    LogsNorms: "LogsNorms.on_before_optimizer_step asks for a gradient or a weight that another",
    SumsUpInPlace: "SumsUpInPlace.on_before_optimizer_step asks for a gradient or a weight that",
    WithTeacher: "for an average of weights",
    ScalesByHand: "a step of ScalesByHand uses layers, or their parameters or gradients",
    ScalesInStep: "ScalesInStep.optimizer_step asks for a gradient or a weight that another rank",
    LineSearch: "LBFGS updates a weight by the gradients of all others",
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


EXACT = [ClipsByHand, Clips, AsksTheStrategy, ChangesEach, ChangesByHand, ClampsByHooks]


def pipeline(**options: Any) -> onecurve.Pipeline:
    return onecurve.Pipeline(microbatches=2, timeout_seconds=30, **options)


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> dict[str, Any]:
    """Each module under pipeline, in one start of two ranks."""
    cases: dict[str, Case] = {
        module.__name__: (module, pipeline(), {}) for module in (*REFUSED, *EXACT)
    }
    cases["a callback"] = (Small, pipeline(), {"callbacks": [Norms()]})
    ranks: dict[str, Any] = shared("hooks", lambda: onecurve.launch(fits, cases))
    return ranks


@pytest.mark.parametrize("name", [*(module.__name__ for module in REFUSED), "a callback"])
def test_what_needs_all_gradients_is_refused(outcomes: dict[str, Any], name: str) -> None:
    words = {module.__name__: words for module, words in REFUSED.items()}
    refusal = outcomes[name]
    assert isinstance(refusal, str), "it was trained"
    assert refusal.startswith("strategy=pipeline: ")
    assert words.get(name, "Norms.on_before_optimizer_step asks for a gradient") in refusal
    assert "strategy=ddp" in refusal or "strategy=fsdp" in refusal
    assert "\n" not in refusal


def compare(module: Any, found: Any) -> None:
    whole: Case = (module, onecurve.Single(), {"devices": 1})
    single = onecurve.launch(fits, {"": whole}, devices=1)[""]
    assert single.keys() == found.keys()
    for name, curve in single.items():
        assert largest_difference(found[name], curve) <= ROUNDING, name


@pytest.mark.compares
@pytest.mark.parametrize("module", EXACT)
def test_what_asks_the_strategy_gets_the_whole(outcomes: dict[str, Any], module: Any) -> None:
    compare(module, outcomes[module.__name__])


@pytest.mark.compares
@pytest.mark.slow
def test_replicas_have_averaged_before_a_hook_looks() -> None:
    """Four ranks, two pipelines."""
    case: Case = (AsksTheStrategy, pipeline(replicas=2), {"devices": 4})
    compare(AsksTheStrategy, onecurve.launch(fits, {"": case}, devices=4)[""])
