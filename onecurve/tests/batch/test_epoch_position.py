"""A run that stopped inside an epoch resumes there with any data."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import warm_ranks
from lightning.pytorch import Callback, seed_everything
from several_fits import LIGHTNING, Losses, Saves, quiet_trainer
from torch.utils.data import DataLoader
from zoo import data, tasks

import onecurve
from onecurve.machine import unchanged_environment

Made = Callable[[], Any]


def losses(
    made: Made,
    *callbacks: Callback,
    resume: Path | None = None,
    epochs: int = 2,
    task: type[tasks.Plain] = tasks.Plain,
    strategy: type[onecurve.Single | onecurve.DDP] = onecurve.Single,
) -> list[float]:
    """Of some epochs, of which each has three steps or more."""
    record = Losses()
    options: Any = {"precision": "64-true", "max_epochs": epochs, "callbacks": [record, *callbacks]}
    with unchanged_environment(LIGHTNING):
        seed_everything(1, verbose=False)
        devices = 1 if strategy is onecurve.Single else 2
        quiet_trainer(strategy(), devices, **options).fit(task(), made(), ckpt_path=resume)
    return record.logged["train/loss"]


def inside(file: Path, epoch: int = 0, batch: int = 1) -> Saves:
    """Saves after a batch of an epoch."""
    return Saves(file, "on_train_batch_end", epoch, batch)


def torchdatas(workers: int) -> Any:
    loader: Any = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    return loader(data.StatefulEpochs(), 4, num_workers=workers)


def with_persistent_workers() -> DataLoader[Any]:
    return DataLoader(data.pairs(), 4, shuffle=True, num_workers=1, persistent_workers=True)


class Batches(list[Any]):
    """Batches as they come."""


# Others resume in the table of tests/parity. What cannot restore its position is read again.
READ_AGAIN: dict[str, tuple[Made, bool]] = {
    "torchdata": (partial(torchdatas, 0), False),
    "torchdata with workers": (partial(torchdatas, 2), False),
    "a stream": (data.stream, True),
    "a stream with workers": (
        lambda: DataLoader(data.stream().dataset, 4, num_workers=2), True
    ),
    "batches": (lambda: Batches(data.plain()), True),
}  # fmt: skip


@pytest.mark.parametrize("name", READ_AGAIN)
def test_a_resumed_run_trains_on_the_rest_of_the_epoch(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, (made, is_read_again) = tmp_path / "inside.ckpt", READ_AGAIN[name]
    whole = losses(made, inside(file))
    assert losses(made, resume=file) == whole[2:]
    said = capsys.readouterr().out
    line = "cannot restore its position; 2 batches are read again and dropped"
    assert said.count(line) == said.count("resume:") == is_read_again


@pytest.mark.parametrize("batch", [1, -1], ids=["inside", "at its end"])
def test_it_resumes_in_a_later_epoch_with_persistent_workers(batch: int, tmp_path: Path) -> None:
    """They draw no seed for an epoch that is not their first one."""
    file, made = tmp_path / "later.ckpt", with_persistent_workers
    whole = losses(made, inside(file, 1, batch), epochs=3)
    resumed = losses(made, resume=file, epochs=3)
    assert resumed == whole[-len(resumed) :]
    assert len(resumed) == len(whole) // 3 + (len(whole) // 3 - 2 if batch == 1 else 0)


def streams_by_ranks(file: Path) -> tuple[list[float], list[float]]:
    """What a fit goes on with that one process has begun, and one that it has begun itself."""
    made = partial(losses, data.stream, strategy=onecurve.DDP)
    of_one = made(resume=file)
    made(inside(file))
    return of_one, made(resume=file)


def test_ranks_read_a_stream_again(tmp_path: Path) -> None:
    file = tmp_path / "inside.ckpt"
    whole = losses(data.stream, inside(file))
    for rest in warm_ranks.run(streams_by_ranks, file):
        assert rest == pytest.approx(whole[2:], rel=1e-11)
    assert losses(data.stream, resume=file) == pytest.approx(whole[2:], rel=1e-11)


def test_another_number_of_loaders_or_batch_size_is_rejected_inside_an_epoch(
    tmp_path: Path,
) -> None:
    file = tmp_path / "inside.ckpt"
    losses(data.plain, inside(file))
    with pytest.raises(onecurve.UserError, match=r"with 1 training loaders, and there are 2; give"):
        losses(data.two, resume=file, task=tasks.TwoLoaders)
    with pytest.raises(onecurve.UserError, match=r"after \d+ samples in \d+ batches, which"):
        losses(lambda: DataLoader(data.pairs(), 8, shuffle=True), resume=file)
