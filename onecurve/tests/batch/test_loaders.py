"""Every sample of an epoch is seen exactly once, in the loader's order, by any number of ranks.

How networks train on loaders and streams is in rows of tests/parity/cases.py.
"""

import gc
import random
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from several_fits import Small, quiet_trainer
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import onecurve
from onecurve import seeded
from onecurve.batch.loader import shared_loader
from onecurve.batch.random import Draws, RankStream, draw_from
from onecurve.batch.seeded import set_epoch
from onecurve.errors import UserError


class Lazy(Sampler[int]):
    """Draws one number after the other, with every generator that there is."""

    def __len__(self) -> int:
        return 11

    def __iter__(self) -> Iterator[int]:
        for _ in range(11):
            yield (int(torch.randint(10, ())) + random.randrange(10) + np.random.randint(10)) % 10


class Noisy(IterableDataset[Tensor]):
    """Shares itself out among worker processes, in an order and with noise that are drawn."""

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in torch.randperm(23)[first::step].tolist():
            yield number + torch.rand(())


def loader_of_torchdata(**options: Any) -> Any:
    """Its sampler draws when it is made, and goes on from epoch to epoch."""
    kind: Any = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    return kind(TEN, 3, shuffle=True, **options)


Loader = Callable[..., Any]
TEN: Any = range(10)
LOADERS: dict[str, Loader] = {
    "in order": partial(DataLoader, TEN, 4),
    "a subclass": partial(type("Mine", (DataLoader,), {}), TEN, 4),
    "shuffled": partial(DataLoader, TEN, 3, shuffle=True),
    "drop_last": partial(DataLoader, TEN, 4, shuffle=True, drop_last=True),
    "more than there are": partial(DataLoader, TEN, 20, shuffle=True),
    "some": lambda: DataLoader(TEN, 2, sampler=SubsetRandomSampler([1, 3, 5, 7, 9])),
    "lazy": lambda: DataLoader(TEN, 4, sampler=Lazy()),
    "own generator": lambda: DataLoader(TEN, 4, shuffle=True, generator=torch.Generator()),
    "torchdata": loader_of_torchdata,
    "a stream": lambda: DataLoader(Noisy(), 5),
    "a stream, drop_last": lambda: DataLoader(Noisy(), 5, drop_last=True),
}
WITH_WORKERS: dict[str, Loader] = {
    "shuffled, processes": partial(LOADERS["shuffled"], num_workers=1),
    "torchdata, processes": partial(loader_of_torchdata, num_workers=1),
    "a stream, processes": lambda: DataLoader(Noisy(), 5, num_workers=2),
    "a stream, processes that stay": lambda: DataLoader(
        Noisy(), 5, num_workers=2, persistent_workers=True, drop_last=True
    ),
}


def made(make: Loader) -> Any:
    """A loader, made and read with the same random numbers each time."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    return make()


def part_of(loader: Any, rank: int, ranks: int, training: bool = True) -> Any:
    """What a rank gets of a loader."""
    return shared_loader(loader, rank, ranks, RankStream(rank), 0, training)


def seen_by(part: Any, rank: int) -> list[list[float]]:
    """What a rank sees of two epochs, without what it is given where it has no share."""
    own = []
    for epoch in (0, 1):
        part.begin(epoch)
        for number, samples in enumerate(part):
            share = part.share(number)
            assert len(samples) == max(share.size, 1)
            own.append(samples[: share.size].tolist())
            part.trained(number)
            with RankStream(rank).of_rank(Draws.STEP, epoch, number):
                torch.rand(rank)  # a step draws other numbers on every rank
    return own


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        *((name, ranks) for name in LOADERS for ranks in (2, 5)),
        *((name, 3) for name in WITH_WORKERS),
    ],
)
def test_all_ranks_together_see_the_loaders_batches(name: str, ranks: int) -> None:
    make = (LOADERS | WITH_WORKERS)[name]
    loader = made(make)
    whole = [samples.tolist() for _ in (0, 1) for samples in loader]
    of_ranks = [seen_by(part_of(made(make), rank, ranks), rank) for rank in range(ranks)]
    batches = list(zip(*of_ranks, strict=True))
    assert [[*chain(*shares)] for shares in batches] == whole
    for shares in batches:
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


class OfTwo(Small):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(torch.cat([part[0] for part in batch.values() if part])).square().mean()


def test_a_loader_that_has_ended_counts_no_samples() -> None:
    short, long = (DataLoader(TensorDataset(torch.ones(n, 6)), 2) for n in (2, 6))
    loaders = CombinedLoader({"a": short, "b": long}, "max_size")
    for _ in ("a fit", "another one of the same loaders"):
        trainer = quiet_trainer(onecurve.Single(), max_epochs=1)
        trainer.fit(OfTwo(), loaders)
        assert trainer.strategy.samples_seen == 8  # type: ignore[attr-defined]


def test_attributes_are_those_of_the_users_loader() -> None:
    loader = DataLoader(TEN, 4, sampler=WeightedRandomSampler([1.0] * 10, 10))
    loader.note = "mine"  # type: ignore[attr-defined]
    part = part_of(loader, 0, 2)
    assert (part.note, part.batch_size) == ("mine", 4)
    assert part.sampler is loader.sampler
    assert part.batch_sampler is loader.batch_sampler
    part.worker_init_fn = print
    assert loader.worker_init_fn is print
    part.batch_sampler.batch_size = 5
    assert [len(samples) for samples in part] == [3, 3]


class Own(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Whole(IterableDataset[Any]):
    """Yields one batch."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[Any]:
        yield self.batch


SPARSE = {"nodes": torch.eye(4), "near": torch.eye(4).to_sparse()}


@pytest.mark.parametrize(
    ("loader", "line"),
    [
        (Own(TEN, 4), r"Own .* 2 ranks cannot share .*; .*strategy=Single"),
        (DataLoader(Whole(["a", "b"]), None), r"Whole yields full batches .* let it yield sam"),
        (DataLoader(Whole(SPARSE), None), r"Whole yields full batches .* only dense"),
    ],
)
def test_what_ranks_cannot_share_is_rejected(loader: Any, line: str) -> None:
    list(part_of(loader, 0, 1))
    with pytest.raises(UserError, match=line):
        next(iter(part_of(loader, 0, 2)))


class Augmented(Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        # A generator for each sample, as docs/data.md of a project says.
        rng = np.random.default_rng(np.random.randint(2**31))
        return index + torch.rand(()) * rng.random()


@pytest.mark.parametrize("workers", [0, 1])
def test_draws_of_a_seeded_data_set_depend_on_the_sample(workers: int) -> None:
    halves = Subset(seeded(Subset(Augmented(), range(2, 8)), seed=3), [5, 3, 1, 0])
    loader = DataLoader(halves, batch_size=4, num_workers=workers)
    before = torch.get_rng_state()
    whole = torch.stack([halves[index] for index in range(4)])
    assert torch.equal(torch.get_rng_state(), before), "and leaves the generators alone"
    parts = [part_of(loader, rank, 2) for rank in (0, 1)]
    assert torch.equal(torch.cat([torch.cat(list(part)) for part in parts]), whole)
    set_epoch(loader, 1)
    later = torch.cat([torch.cat(list(part)) for part in parts])
    assert (later.floor() == whole.floor()).all()
    assert (later != whole).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_draws_of_a_seeded_stream_depend_on_epoch_process_and_sample(workers: int) -> None:
    stream = seeded(Noisy(), seed=3)
    loader = DataLoader(stream, 5, num_workers=workers)
    read = []
    for number in (0, 1, 0):
        stream.set_epoch(number)
        torch.manual_seed(len(read))  # whatever was drawn before
        read.append(torch.cat(list(loader)))
    assert torch.equal(read[0], read[2])
    assert not torch.equal(read[0], read[1])
    assert workers or len(set(read[0].long().tolist())) == 23


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_draw_different_numbers_for_their_samples(workers: int) -> None:
    make = partial(DataLoader, Augmented(), 8, num_workers=workers)
    drawn = []
    for rank in (0, 1):
        (samples,) = part_of(made(make), rank, 2)
        drawn.append(samples % 1)
    assert not set(drawn[0].tolist()) & set(drawn[1].tolist())


COORDINATES = [(0,), (42, 7, 0, 1), (2**32 - 1, 0, 3), (2**32, 5), (1, 2**40, 2), (), (0, 0, 0, 0)]


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_seeds_of_random_streams_have_not_changed(coordinates: tuple[int, ...]) -> None:
    before = int(np.random.SeedSequence(coordinates).generate_state(1, np.uint64)[0]) % 2**63
    for _ in range(2):
        draw_from(*coordinates)
        assert torch.initial_seed() == before
        drawn = random.random(), np.random.random()
        random.seed(before)
        np.random.seed(before % 2**32)
        assert drawn == (random.random(), np.random.random())


def test_workers_end_with_their_loader() -> None:
    """Garbage collection would close their queues first, and then wait 5 s for each worker."""
    part = part_of(DataLoader(Noisy(), 5, num_workers=1, persistent_workers=True), 0, 1)
    assert len(list(part)) == 5
    last = weakref.ref(part)
    gc.disable()
    try:
        del part
        assert last() is None
    finally:
        gc.enable()


class FromStart(IterableDataset[Tensor]):
    """Begins with an attribute that a worker sets."""

    start = -1.0

    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.arange(3) + self.start


class Indexed(Dataset[Tensor]):
    start = -1.0

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(self.start)


def set_start(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.start = 10.0 * worker


@pytest.mark.parametrize(
    ("dataset", "size", "read"),
    [(FromStart(), 3, [[0, 1, 2], [10, 11, 12]]), (Indexed(), 1, [[0], [10]])],
)
def test_a_worker_may_set_attributes_of_the_data_set(dataset: Any, size: int, read: Any) -> None:
    loader = DataLoader(dataset, size, num_workers=2, worker_init_fn=set_start)
    assert [batch.tolist() for batch in part_of(loader, 0, 1)] == read
