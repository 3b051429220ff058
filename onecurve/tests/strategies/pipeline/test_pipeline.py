"""strategy=pipeline: the loss that is trained on, in every batch, and numbers of micro-batches.

Modules that it trains or rejects, and another loss from the first step on, are in tests/parity.
"""

from typing import Any

import pytest
from several_fits import Case, Small, data, fits, fits_in_ranks
from torch import Tensor
from torch.nn import functional as F

import onecurve
from onecurve.errors import UserError
from onecurve.strategies.pipeline import limits


class MixedUp(Small):
    """Mixes samples and their losses from its second step on."""

    def of(self, batch: Any) -> Tensor:
        inputs, targets = batch
        if self.global_step == 0:
            return super().of(batch)
        outputs = self(0.7 * inputs + 0.3 * inputs.flip(0))
        return 0.7 * self.loss(outputs, targets) + 0.3 * self.loss(outputs, targets.flip(0))


class OfItsTargets(Small):
    """Has a loss of targets that its step reshapes, as in Lightning's example of fine-tuning."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets.flatten())


class Signed(Small):
    """Has a loss of both signs, which is zero but for rounding in its first step."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        first: Any = next(iter(data()))[1].mean()
        return (1000 * (targets - first)).mean() + 1e-6 * super().loss(outputs, targets)


# When a mistake of step 1 is found.
WRONG: dict[str, dict[str, Any]] = {
    "in the next step": {},
    "at the end of the fit": {"max_steps": 2},
}
RIGHT: dict[str, tuple[type[Small], dict[str, Any]]] = {
    **{name: (Small, {"precision": name}) for name in ("32-true", "bf16-mixed", "bf16-true")},
    "accumulated": (Small, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}),
    "of both signs": (Signed, {"precision": "32-true"}),
}


def case(module: type[Small], options: dict[str, Any]) -> Case:
    return module, onecurve.Pipeline(microbatches=2), options


def test_another_loss_is_rejected_and_the_right_one_never_is() -> None:
    cases = {name: case(MixedUp, options) for name, options in WRONG.items()}
    found = fits_in_ranks({**cases, **{name: case(*made) for name, made in RIGHT.items()}})
    for name in WRONG:
        line = found[name]
        assert isinstance(line, str), f"{name}: it was trained"
        assert line.startswith("strategy=pipeline: ")
        for words in ("in step 1, ", "Pipeline(schedule='gpipe')"):
            assert words in line
        assert "\n" not in line
    for name in RIGHT:
        assert not isinstance(found[name], str), f"{name}: {found[name]}"
        assert len(found[name]["train/loss"]) == 6


def test_so_is_a_loss_that_micro_batches_do_not_have() -> None:
    with pytest.raises(UserError, match=r"\.loss fails on outputs .*Target size"):
        onecurve.launch(fits, {"": case(OfItsTargets, {"is_alone": True})}, devices=2)


def test_a_split_is_one_that_the_schedule_takes() -> None:
    """For every size of batch: equal parts, and a schedule that takes their number."""
    for name in limits.SCHEDULES:
        for ranks in (1, 2, 3, 4):
            for size in range(1, 40):
                schedule, count = limits.split(name, 4, ranks, size)
                assert size % count == 0
                assert limits.takes(schedule, count, ranks)
                assert schedule in (name, "gpipe")
    assert limits.split("1f1b", 4, 2, 50) == ("1f1b", 5)
    assert limits.split("1f1b", 4, 2, 47) == ("gpipe", 1)
