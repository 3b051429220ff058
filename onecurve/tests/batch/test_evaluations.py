"""What an evaluation logs in each step and at the end, with loaders of any kind."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from several_fits import Small, data, quiet_trainer
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import MeanSquaredError

import onecurve


class Logged(DummyLogger):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.append(metrics)


class Evaluated(Small):
    """Takes a batch, or one of each of several loaders."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        parts = list(batch.values()) if isinstance(batch, dict) else [batch]
        rows = torch.cat([part for part in parts if part is not None])
        self.log("size", rows.square().mean(), on_step=True, on_epoch=True, batch_size=len(rows))


class LogsAtTheEnd(Evaluated):
    """Logs by name, and what all batches have come to."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        super().validation_step(batch, batch_idx)
        self.log(name="first", value=batch[:, 0].mean(), batch_size=len(batch))

    def on_validation_epoch_end(self) -> None:
        self.log_dict({"one": 1.0, "two": 2.0})
        self.log(name="three", value=3.0)


class LogsItsWay(Evaluated):
    """Has a `log` of its own, which passes on what it is given."""

    def log(self, *args: Any, **options: Any) -> None:
        super().log(*args, **options)


def rows(number: int) -> list[Tensor]:
    return list(torch.randn(number, 6, generator=torch.Generator().manual_seed(number)).double())


BATCHES = [torch.stack(rows(4)), torch.stack(rows(5))]


class NoLoader:
    """Every rank has all of it."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(BATCHES)


def by_themselves() -> Any:
    """A loader that makes no batches."""
    return DataLoader(BATCHES, batch_size=None)  # type: ignore[arg-type]


def two_at_once() -> Any:
    loaders = {"a": DataLoader(rows(7), batch_size=4), "b": DataLoader(rows(9), batch_size=3)}
    return CombinedLoader(loaders, "max_size")


def ordinary() -> Any:
    return DataLoader(rows(8), batch_size=4)  # type: ignore[arg-type]


CASES: tuple[tuple[type[Evaluated], Callable[[], Any]], ...] = (
    (Evaluated, NoLoader),
    (Evaluated, by_themselves),
    (Evaluated, two_at_once),
    (LogsAtTheEnd, ordinary),
    (LogsItsWay, ordinary),
)


def in_two_ranks(function: str, *arguments: Any) -> Any:
    return warm_ranks.run(f"test_evaluations.{function}", arguments, processes=2)


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
    assert in_two_ranks("validated_by_the_clock")


def validated(strategy: Any, devices: int) -> list[list[dict[str, float]]]:
    found = []
    for module, make in CASES:
        logged = Logged()
        trainer = quiet_trainer(strategy(), devices, logger=logged)
        trainer.validate(module().double(), make(), verbose=False)
        lines = [{k: v for k, v in line.items() if k != "epoch"} for line in logged.lines]
        found.append([line for line in lines if line])
    return found


@pytest.mark.compares
def test_what_is_logged_is_what_a_plain_trainer_logs() -> None:
    plain = validated(onecurve.Single, 1)
    ranks = in_two_ranks("validated", onecurve.DDP, 2)
    assert [len(lines) for lines in plain] == [3, 3, 4, 3, 3]
    for lines, expected in zip(ranks, plain, strict=True):
        for line, other in zip(lines, expected, strict=True):
            assert line == pytest.approx(other, rel=ROUNDING)


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
    assert in_two_ranks("logged_error", onecurve.DDP, 2).ndim == 0


class Written(BasePredictionWriter):
    def __init__(self) -> None:
        super().__init__("batch_and_epoch")
        self.seen: list[Any] = []

    def write_on_batch_end(self, *args: Any) -> None:
        prediction, indices = args[2:4]
        self.seen.append((indices, [] if prediction is None else prediction))

    def write_on_epoch_end(self, *args: Any) -> None:
        self.seen.append(args[3])


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
    first, second = in_two_ranks("predicted", 2)
    of_first, of_second = [[0, 1, 2], [5, 6, 7], [10]], [[3, 4], [8, 9], []]
    assert first == [of_first, [*((each, each) for each in of_first), [of_first]]]
    own, seen = second
    assert [each or [] for each in own] == of_second
    assert seen == [*((each, each) for each in of_second), [of_second]]
