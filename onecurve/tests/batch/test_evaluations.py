"""When ranks validate, what they predict, and of what shape a metric is.

What an evaluation logs is in rows of tests/parity/cases.py.
"""

import time
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING, largest_difference
from lightning.pytorch import seed_everything
from several_fits import LIGHTNING, Small, Written, data, quiet_trainer
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader
from torchmetrics import MeanSquaredError
from zoo import data as many_data
from zoo import tasks

import onecurve
from onecurve.app.run.predict import Predictions, add_predict_step
from onecurve.machine import unchanged_environment


class OneClockIsSlow(Small):
    """Notes the steps before a validation; the second rank's clock is half a second late."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.errors = MeanSquaredError()  # its state is a vector of one number

    def on_train_start(self) -> None:
        self.trainer._last_val_time += 0.5 * self.global_rank

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        time.sleep(0.02)
        self.errors(self(batch[0]), batch[1])
        self.log("errors", self.errors)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.steps.append(self.global_step)
        assert all(self.all_gather(torch.tensor(self.global_step)) == self.global_step)


def validated_by_the_clock() -> tuple[list[int], Tensor]:
    strategy = onecurve.DDP(timeout_seconds=20)
    options = {"max_steps": 70, "num_sanity_val_steps": 0, "limit_val_batches": 1}
    trainer = quiet_trainer(strategy, 2, val_check_interval="00:00:00:01", **options)
    task = OneClockIsSlow()
    trainer.fit(task, data(), data())
    return task.steps, trainer.callback_metrics["errors"]


def test_ranks_validate_by_the_clock_of_the_first_and_log_numbers() -> None:
    steps, error = warm_ranks.run(validated_by_the_clock)
    assert steps
    assert error.ndim == 0


class Predicts(Small):
    """The number of each sample."""

    def predict_step(self, batch: Any, batch_idx: int) -> list[int]:
        numbers: list[int] = batch.tolist()
        return numbers


def predicted_and_written() -> tuple[Any, list[Any]]:
    writer = Written()
    trainer = quiet_trainer(onecurve.DDP(), 2, callbacks=[writer])
    own = trainer.predict(Predicts(), DataLoader(range(11), batch_size=5))  # type: ignore[arg-type]
    return trainer.strategy.gather_from_replicas([own, writer.seen])  # type: ignore[attr-defined, no-any-return]


def test_each_rank_predicts_its_own_and_its_writers_know_which() -> None:
    """With batches of 5, 5 and 1."""
    first, second = warm_ranks.run(predicted_and_written)
    of_first, of_second = [[0, 1, 2], [5, 6, 7], [10]], [[3, 4], [8, 9], []]
    assert first == [of_first, [*((each, each) for each in of_first), [of_first]]]
    own, seen = second
    assert [each or [] for each in own] == of_second
    assert seen == [*((each, each) for each in of_second), [of_second]]


def predicted(strategy: Any, devices: int) -> list[Any]:
    """What is predicted for two streams, whose last batches are smaller than the ranks."""
    seed_everything(1, verbose=False)
    kept, module = Predictions(), tasks.Plain()
    add_predict_step(module)
    trainer = quiet_trainer(strategy, devices, precision="64-true", callbacks=[kept])
    streams = [many_data.stream(), many_data.whole_batches()]
    trainer.predict(module, streams, return_predictions=False)
    return [None if rows is None else rows.tolist() for rows in kept.joined()]


@pytest.mark.compares
def test_predictions_of_a_stream_are_in_its_order() -> None:
    with unchanged_environment(LIGHTNING):
        single = predicted(onecurve.Single(), 1)
    ranks = warm_ranks.run(predicted, onecurve.DDP(), 2)
    assert [len(rows) for rows in ranks] == [21, 21]
    curves = [tree_flatten(rows)[0] for rows in (single, ranks)]
    assert largest_difference(*curves) <= ROUNDING
