"""Batches that are accumulated make the step of one batch of all their samples, whatever sizes."""

from functools import partial
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING, largest_difference
from lightning.pytorch import seed_everything
from several_fits import LIGHTNING, quiet_trainer
from zoo import data, tasks

import onecurve
from onecurve.machine import unchanged_environment

# A task, how many batches make a step, its batches, and those of as many samples as a step.
WINDOWS: dict[str, tuple[Any, int, Any, Any]] = {
    # Windows of 4, 4, 4, 4 and of 4, 1 samples.
    "uneven": (tasks.Plain, 4, partial(data.plain, 4), partial(data.plain, 16)),
    "no loader": (tasks.Plain, 2, partial(data.NoLoader, 9, 1, 11), partial(data.NoLoader, 10, 11)),
    "by weight": (tasks.PaddedWeighed, 3, data.tokens, partial(data.tokens, data.SAMPLES)),
}


def trained(
    task: Any, loader: Any, strategy: Any, devices: int = 1, accumulated: int = 1
) -> list[float]:
    """The weights after two epochs."""
    seed_everything(1, verbose=False)
    trainer = quiet_trainer(
        strategy, devices, max_epochs=2, precision="64-true", accumulate_grad_batches=accumulated,
        gradient_clip_val=0.1,
    )  # fmt: skip
    trainer.fit(task(), loader)
    weights = trainer.strategy.lightning_module_state_dict().values()
    return torch.cat([torch.as_tensor(each).flatten() for each in weights]).tolist()


def accumulated(strategy: Any, devices: int) -> dict[str, list[float]]:
    return {
        name: trained(task, made(), strategy(), devices, number)
        for name, (task, number, made, _) in WINDOWS.items()
    }


@pytest.mark.compares
def test_accumulated_batches_make_the_step_of_one() -> None:
    ranks = warm_ranks.run(accumulated, onecurve.DDP, 2)
    with unchanged_environment(LIGHTNING):
        single = accumulated(onecurve.Single, 1)
        for name, (task, _, _, made) in WINDOWS.items():
            whole = trained(task, made(), "auto")
            assert largest_difference(whole, single[name]) <= ROUNDING
            assert largest_difference(whole, ranks[name]) <= ROUNDING
