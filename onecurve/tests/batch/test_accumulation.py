"""Batches that are accumulated make the step of one batch of all their samples, whatever sizes."""

from functools import partial
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING, largest_difference
from lightning.pytorch import seed_everything
from several_fits import LIGHTNING, Losses, quiet_trainer
from torch.utils._pytree import tree_flatten
from zoo import data, tasks

import onecurve
from onecurve.machine import unchanged_environment

# A task, how many batches make a step, its batches, and those of as many samples as a step.
WINDOWS: dict[str, tuple[Any, int, Any, Any]] = {
    # Windows of 4, 4, 4, 4 and of 4, 1 samples.
    "uneven": (tasks.MetricInTraining, 4, partial(data.plain, 4), partial(data.plain, 16)),
    "a stream": (
        partial(tasks.Optimized, "SGD"), 4, partial(data.stream, 4), partial(data.stream, 16)
    ),
    "no loader": (tasks.Plain, 2, partial(data.NoLoader, 9, 1, 11), partial(data.NoLoader, 10, 11)),
    "by weight": (tasks.PaddedWeighed, 3, data.tokens, partial(data.tokens, data.SAMPLES)),
}  # fmt: skip
CLIPS = {"gradient_clip_val": 0.1}


def trained(task: Any, loader: Any, strategy: Any, devices: int, **options: Any) -> dict[str, Any]:
    """Two epochs in float64: losses of the batches, metrics of the last epoch, weights."""
    seed_everything(1, verbose=False)
    record = Losses()
    options = {"max_epochs": 2, "precision": "64-true", "callbacks": [record], **options}
    trainer = quiet_trainer(strategy, devices, **options)
    trainer.fit(task(), loader)
    weights = trainer.strategy.lightning_module_state_dict()
    return {
        "losses": record.logged.get("train/loss_step", record.logged["train/loss"]),
        "metrics": {
            name: value.item()
            for name, value in trainer.callback_metrics.items()
            if name.endswith(("_epoch", "/mean"))
        },
        "weights": {name: torch.as_tensor(value).tolist() for name, value in weights.items()},
    }


def accumulated(strategy: Any, devices: int) -> dict[str, Any]:
    return {
        name: trained(task, made(), strategy(), devices, accumulate_grad_batches=number, **CLIPS)
        for name, (task, number, made, _) in WINDOWS.items()
    }


def assert_equal(result: dict[str, Any], expected: dict[str, Any]) -> None:
    (numbers, spec), (others, spec_of_others) = tree_flatten(result), tree_flatten(expected)
    assert spec == spec_of_others
    assert largest_difference(others, numbers) <= ROUNDING


@pytest.mark.compares
def test_accumulated_batches_make_the_step_of_one() -> None:
    with unchanged_environment(LIGHTNING):
        single = accumulated(onecurve.Single, 1)
        expected = {
            name: trained(task, whole(), "auto", 1, **CLIPS)
            for name, (task, _, _, whole) in WINDOWS.items()
        }
    ranks = warm_ranks.run(accumulated, onecurve.DDP, 2)
    for name in WINDOWS:
        assert_equal(ranks[name], single[name])
        # What is logged by step is of another batch.
        both = ({**run[name], "losses": []} for run in (single, expected))
        assert_equal(*both)


def test_a_batch_that_is_skipped_does_not_count_among_those_accumulated() -> None:
    last_of_four = partial(tasks.Skips, 3), data.NoLoader(4, 4, 4, 4, 5)
    alone = partial(tasks.Skips, 1), data.NoLoader(12, 4, 5)
    with unchanged_environment(LIGHTNING):
        found = trained(*last_of_four, onecurve.Single(), 1, accumulate_grad_batches=4)["weights"]
        expected = trained(*alone, onecurve.Single(), 1)["weights"]
    assert_equal(found, expected)
