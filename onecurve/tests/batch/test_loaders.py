"""Ranks that share a loader train on its batches, whatever it is, and resume in an epoch of it.

Most loaders and streams are in rows of tests/parity/cases.py; here are those that read in processes
or draw in ways of their own.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROUNDING, largest_difference
from several_fits import LIGHTNING, Case, alone, fits
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info
from torch.utils.data.distributed import DistributedSampler
from zoo import data, tasks

import onecurve
from onecurve import seeded
from onecurve.batch.loader import shared_loader
from onecurve.batch.random import RankStream
from onecurve.batch.seeded import set_epoch
from onecurve.errors import UserError
from onecurve.machine import unchanged_environment
from onecurve.testing import assert_parity


class Parts(data.Stream):
    """Begins with the sample that `worker_init_fn` says, as PyTorch's documentation has it."""

    start = 0

    def __iter__(self) -> Iterator[Any]:
        yield from list(self.samples)[self.start :: 2]


def set_start(worker: int) -> None:
    get_worker_info().dataset.start = worker  # type: ignore[union-attr]


def of_torchdata(dataset: Any, **options: Any) -> Any:
    """Its sampler draws when it is made, and goes on from epoch to epoch."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, 5, **options)


PAIRS = data.pairs()
STAY: Any = {"num_workers": 1, "persistent_workers": True}
# Five batches an epoch, the last one smaller than the ranks.
LOADERS: dict[str, Any] = {
    "a subclass": partial(type("Mine", (DataLoader,), {}), PAIRS, 5, shuffle=True),
    "a sampler that is told the epoch": lambda: DataLoader(
        PAIRS, 5, sampler=DistributedSampler(PAIRS, 1, 0), num_workers=1
    ),
    "own generator": lambda: DataLoader(PAIRS, 5, shuffle=True, generator=torch.Generator()),
    "torchdata, processes": partial(of_torchdata, PAIRS, shuffle=True, num_workers=1),
    "processes": partial(DataLoader, PAIRS, 5, shuffle=True, num_workers=1),
    "processes that stay": partial(DataLoader, PAIRS, 5, shuffle=True, **STAY),
    "a stream, processes": partial(DataLoader, data.Shuffled(), 5, num_workers=2),
    "a stream, processes that stay": partial(DataLoader, data.Stream(), 5, **STAY),
    "a stream in parts": partial(
        DataLoader, Parts(), 5, num_workers=2, worker_init_fn=set_start, drop_last=True
    ),
    "torchdata, a stream with a state": partial(of_torchdata, data.StatefulEpochs(), num_workers=2),
}


CASES: dict[str, Case] = {
    name: (tasks.Plain, onecurve.DDP(), {"data": made}) for name, made in LOADERS.items()
}


@pytest.mark.compares
@pytest.mark.parametrize("name", LOADERS)
def test_a_run_trains_and_resumes_as_a_plain_trainer(name: str) -> None:
    """It resumes after the second batch of the second epoch."""
    if "torchdata" in name:
        pytest.importorskip("torchdata.stateful_dataloader")
    with unchanged_environment(LIGHTNING):
        assert_parity(
            tasks.Plain, LOADERS[name], strategy=onecurve.Single(), accelerator="cpu", steps=10
        )


def in_ranks() -> dict[str, Any]:
    return fits(CASES)


@pytest.mark.compares
def test_ranks_train_as_one_process() -> None:
    """Started for this test: warm ranks may have no worker processes."""
    pytest.importorskip("torchdata.stateful_dataloader")
    single, ranks = alone(CASES), onecurve.launch(in_ranks, devices=2)
    for name in CASES:
        curves = (each[name]["train/loss"] for each in (single, ranks))
        assert largest_difference(*curves) <= ROUNDING, name


def part_of(loader: Any, rank: int, ranks: int) -> Any:
    """What a rank gets of a loader."""
    return shared_loader(loader, rank, ranks, RankStream(rank), 0, True)


class Own(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter(())


def test_a_loader_that_ranks_cannot_share_is_rejected() -> None:
    loader = Own(range(10), 4)  # type: ignore[arg-type]
    list(part_of(loader, 0, 1))
    with pytest.raises(UserError, match=r"Own .* 2 ranks cannot share .*; .*strategy=Single"):
        next(iter(part_of(loader, 0, 2)))


class Augmented(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        # A generator for each sample, as docs/data.md of a project says.
        rng = np.random.default_rng(np.random.randint(2**31))
        return index + torch.rand(()) * rng.random(), index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [Subset(Augmented(), range(2, 8)), data.Shuffled()])
def test_draws_of_seeded_data_depend_on_epoch_and_sample(dataset: Any, workers: int) -> None:
    loader = DataLoader(seeded(dataset, seed=3), 5, num_workers=workers)
    read = []
    for epoch in (0, 1, 0):
        set_epoch(loader, epoch)
        torch.manual_seed(len(read))  # whatever was drawn before
        read.append(torch.cat([batch[0].flatten() for batch in loader]))
    assert torch.equal(read[0], read[2])
    assert not set(read[0].tolist()) & set(read[1].tolist())


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_draw_different_numbers_for_their_samples(workers: int) -> None:
    drawn = []
    for rank in (0, 1):
        torch.manual_seed(1)
        ((samples, _),) = part_of(DataLoader(Augmented(), 8, num_workers=workers), rank, 2)
        drawn.append(samples % 1)
    assert not set(drawn[0].tolist()) & set(drawn[1].tolist())
