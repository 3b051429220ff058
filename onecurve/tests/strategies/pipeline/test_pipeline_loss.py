"""strategy=pipeline: what a step returns is the loss that is trained on, in every batch."""

from functools import partial
from typing import Any

import pytest
import torch
from conftest import Shared
from lightning.pytorch import Callback, Trainer
from several_fits import Case, Small, assert_rejected, data, fits, fits_in_ranks
from torch import Tensor

import onecurve
from onecurve.errors import UserError


class Sloped(Small):
    """Asks for a gradient in its step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        outputs = self(batch[0])
        loss = self.loss(outputs, batch[1])
        (slope,) = torch.autograd.grad(loss, outputs, retain_graph=True)
        return loss + slope.square().mean()


class MixedUp(Small):
    """Mixes samples and their losses from its second step on."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        if self.global_step == 0:
            return super().training_step(batch, batch_idx)
        outputs = self(0.7 * inputs + 0.3 * inputs.flip(0))
        return 0.7 * self.loss(outputs, targets) + 0.3 * self.loss(outputs, targets.flip(0))


class OtherTargets(Small):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        return super().training_step((inputs, targets + (self.global_step == 2)), batch_idx)


class OfAll(Small):
    """Compares all samples, in the loss that a schedule takes."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        strategy: Any = self.trainer.strategy
        return super().loss(strategy.all_samples(outputs), strategy.all_samples(targets))


class OfTheStep(Small):
    """Has a loss that needs an attribute of another step."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().loss(outputs, targets) * self.scale


class Tiny(Small):
    """Has a loss of 1e-8, and scales it from its second step on."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 1e-8 * super().loss(outputs, targets)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (2 if self.global_step else 1)


class Signed(Small):
    """Has a loss of both signs, which is zero but for rounding in its first step."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        first: Any = next(iter(data()))[1].mean()
        return (1000 * (targets - first)).mean() + 1e-6 * super().loss(outputs, targets)


class Saves(Callback):
    """Asks for the weights after step 1."""

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.strategy.lightning_module_state_dict()


class Steps(Callback):
    """Says in which step a fit was ended."""

    def on_exception(self, trainer: Trainer, module: Any, error: BaseException) -> None:
        error.args = (f"{error} (ended in step {trainer.global_step})",)


WRONG = {
    Sloped: "computes a gradient of its network's outputs",
    MixedUp: "in step 1, ",
    OtherTargets: "in step 2, ",
    Tiny: "in step 1, ",
}
RIGHT = {
    "float32": {"precision": "32-true"},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16-true": {"precision": "bf16-true"},
    "accumulated": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1},
}
# When a mistake of step 1 is found.
READ = {
    "in the next step": {"callbacks": [Steps()]},
    "before weights are saved": {"callbacks": [Steps(), Saves()]},
    "at the end of the fit": {"max_steps": 2, "callbacks": [Steps()]},
}


def pipeline(module: Any, **options: Any) -> Case:
    return module, onecurve.Pipeline(microbatches=2), options


@pytest.fixture(scope="session")
def outcomes(shared: Shared) -> Any:
    cases = {module.__name__: pipeline(module) for module in WRONG}
    cases |= {name: pipeline(Small, **options) for name, options in RIGHT.items()}
    cases["signed"] = pipeline(Signed, precision="32-true")
    cases |= {name: pipeline(MixedUp, **options) for name, options in READ.items()}
    return shared("loss", partial(fits_in_ranks, cases))


@pytest.mark.parametrize("module", WRONG)
def test_another_loss_is_refused_in_its_step(outcomes: Any, module: Any) -> None:
    assert_rejected(outcomes[module.__name__], WRONG[module])
    assert "Pipeline(schedule='gpipe')" in outcomes[module.__name__]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (OfAll, r"all_samples: needs the full batch, .* use schedule='gpipe'"),
        (OfTheStep, r"OfTheStep.loss fails on outputs .* has no attribute 'scale'"),
    ],
)
def test_so_is_a_loss_that_micro_batches_do_not_have(module: Any, line: str) -> None:
    *parts, options = pipeline(module)
    with pytest.raises(UserError, match=line):
        onecurve.launch(fits, {"": (*parts, {**options, "is_alone": True})}, devices=2)


@pytest.mark.parametrize("name", [*RIGHT, "signed"])
def test_the_right_loss_never_is(outcomes: dict[str, Any], name: str) -> None:
    assert len(outcomes[name]["train/loss"]) == 6


@pytest.mark.parametrize("name", READ)
def test_it_is_found_before_another_step_counts(outcomes: Any, name: str) -> None:
    assert "in step 1, " in outcomes[name]
    assert outcomes[name].endswith("(ended in step 2)")
