"""This project's network, data and task have one loss curve, whichever strategy trains them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import STRATEGIES, shipped
from onecurve.testing.runs import Cli, column, largest_difference

Once = Callable[..., Path]
# In float64, where a difference cannot be rounding.
EPOCH = ("trainer.precision=64-true", "trainer.max_epochs=1", "logger=csv")


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "single"])
def test_every_loss_is_that_of_single(once: Once, strategy: str) -> None:
    single, other = once(*EPOCH, "strategy=single"), once(*EPOCH, *STRATEGIES[strategy])
    losses = column(single, "train/loss")
    assert (half := len(losses) // 2) > 4
    assert sum(losses[-half:]) < sum(losses[:half])
    for name in ("train/loss", "val/loss", "test/loss"):
        assert largest_difference(column(single, name), column(other, name)) <= 1e-11, name


@pytest.mark.parametrize("strategy", [name for name in ("single", "ddp") if name in STRATEGIES])
def test_training_is_that_of_a_plain_trainer(cli: Cli, strategy: str) -> None:
    """Losses, gradients, logged values, weights, and a resume in the middle."""
    outcome = cli("onecurve", "parity", *STRATEGIES[strategy])
    assert outcome.status == 0, outcome.out + outcome.err


@shipped("callbacks/checkpoint")
def test_a_checkpoint_moves_on(once: Once) -> None:
    def second_epoch(one: str, other: str) -> list[float]:
        saved = once(*EPOCH, *STRATEGIES[one]) / "checkpoints/last.ckpt"
        more = ("trainer.max_epochs=2", f"resume={saved}")
        return column(once(*EPOCH, *STRATEGIES[other], *more), "train/loss")

    single, moved = second_epoch("single", "single"), second_epoch("fsdp", "pipeline")
    assert largest_difference(single, moved) <= 1e-11
