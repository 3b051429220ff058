"""When ranks validate, and what they predict.

What an evaluation logs is in rows of tests/parity/cases.py.
"""

import time
from collections.abc import Iterator
from typing import Any

import torch
import warm_ranks
from several_fits import Small, Written, data, quiet_trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

import onecurve
from onecurve.app.run.predict import Predictions


class OneClockIsSlow(Small):
    """Counts validations; the second rank's clock is half a second late."""

    validations = 0

    def on_train_start(self) -> None:
        self.trainer._last_val_time += 0.5 * self.global_rank

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        time.sleep(0.02)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.validations += 1
        assert all(self.all_gather(torch.tensor(self.global_step)) == self.global_step)


def validated_by_the_clock() -> int:
    strategy = onecurve.DDP(timeout_seconds=20)
    options = {"max_steps": 70, "num_sanity_val_steps": 0, "limit_val_batches": 1}
    task = OneClockIsSlow()
    trainer = quiet_trainer(strategy, 2, val_check_interval="00:00:00:01", **options)
    trainer.fit(task, data(), data())
    return task.validations


def test_ranks_validate_by_the_clock_of_the_first() -> None:
    assert warm_ranks.run(validated_by_the_clock)


class Predicts(Small):
    """The number of each sample."""

    def predict_step(self, batch: Any, batch_idx: int) -> list[int]:
        numbers: list[int] = batch.tolist()
        return numbers


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(11)


def predicted_and_written() -> tuple[Any, list[Any]]:
    writer, kept = Written(), Predictions()
    trainer = quiet_trainer(onecurve.DDP(), 2, callbacks=[writer])
    own = trainer.predict(Predicts(), DataLoader(range(11), batch_size=5))  # type: ignore[arg-type]
    of_ranks = trainer.strategy.gather_from_replicas([own, writer.seen])  # type: ignore[attr-defined]
    trainer = quiet_trainer(onecurve.DDP(), 2, callbacks=[kept])
    trainer.predict(Predicts(), DataLoader(Numbers(), batch_size=5), return_predictions=False)
    return of_ranks, kept.joined()


def test_each_rank_predicts_its_own_and_its_writers_know_which() -> None:
    """With batches of 5, 5 and 1."""
    (first, second), of_a_stream = warm_ranks.run(predicted_and_written)
    of_first, of_second = [[0, 1, 2], [5, 6, 7], [10]], [[3, 4], [8, 9], []]
    assert first == [of_first, [*((each, each) for each in of_first), [of_first]]]
    own, seen = second
    assert [each or [] for each in own] == of_second
    assert seen == [*((each, each) for each in of_second), [of_second]]
    assert of_a_stream == [[*range(11)]]
