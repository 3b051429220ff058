"""When ranks validate, what they predict, and of what shape a metric is.

What an evaluation logs is in rows of tests/parity/cases.py.
"""

import time
from typing import Any

import torch
import warm_ranks
from several_fits import Small, Written, data, quiet_trainer
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MeanSquaredError

import onecurve


class OneClockIsSlow(Small):
    """Notes the steps before a validation; the second rank's clock is half a second late."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []

    def on_train_start(self) -> None:
        self.trainer._last_val_time += 0.5 * self.global_rank

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        time.sleep(0.02)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.steps.append(self.global_step)
        assert all(self.all_gather(torch.tensor(self.global_step)) == self.global_step)


def validated_by_the_clock() -> list[int]:
    strategy = onecurve.DDP(timeout_seconds=20)
    options = {"max_steps": 70, "num_sanity_val_steps": 0, "limit_val_batches": 1}
    trainer = quiet_trainer(strategy, 2, val_check_interval="00:00:00:01", **options)
    task = OneClockIsSlow()
    trainer.fit(task, data(), data())
    return task.steps


def test_ranks_validate_by_the_clock_of_the_first() -> None:
    assert warm_ranks.run(validated_by_the_clock)


class LogsErrors(Small):
    """Of a metric whose state is a vector of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.errors = MeanSquaredError()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.errors(self(batch[0]), batch[1])
        self.log("errors", self.errors)
        return super().training_step(batch, batch_idx)


def logged_error(strategy: Any, devices: int) -> Tensor:
    trainer = quiet_trainer(strategy(), devices, max_epochs=1)
    trainer.fit(LogsErrors(), data())
    return trainer.callback_metrics["errors"]


def test_a_metric_of_a_step_is_a_number() -> None:
    assert warm_ranks.run(logged_error, onecurve.DDP, 2).ndim == 0


class Predicts(Small):
    """The number of each sample."""

    def predict_step(self, batch: Any, batch_idx: int) -> list[int]:
        numbers: list[int] = batch.tolist()
        return numbers


def predicted(devices: int) -> tuple[Any, list[Any]]:
    writer = Written()
    trainer = quiet_trainer(onecurve.DDP(), devices, callbacks=[writer])
    own = trainer.predict(Predicts(), DataLoader(range(11), batch_size=5))  # type: ignore[arg-type]
    return trainer.strategy.gather_from_replicas([own, writer.seen])  # type: ignore[attr-defined, no-any-return]


def test_each_rank_predicts_its_own_and_its_writers_know_which() -> None:
    """With batches of 5, 5 and 1."""
    first, second = warm_ranks.run(predicted, 2)
    of_first, of_second = [[0, 1, 2], [5, 6, 7], [10]], [[3, 4], [8, 9], []]
    assert first == [of_first, [*((each, each) for each in of_first), [of_first]]]
    own, seen = second
    assert [each or [] for each in own] == of_second
    assert seen == [*((each, each) for each in of_second), [of_second]]
