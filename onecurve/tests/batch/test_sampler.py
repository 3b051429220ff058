"""Every sample of an epoch is seen exactly once, in the loader's order, by any number of ranks.

That samplers for ranks are replaced is in rows of tests/parity/cases.py.
"""

import random
from collections.abc import Callable, Iterator
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
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import onecurve
from onecurve import seeded
from onecurve.batch.loader import RankLoader, reject_shared
from onecurve.batch.random import Draws, RankStream
from onecurve.batch.seeded import set_epoch
from onecurve.errors import UserError


class Lazy(Sampler[int]):
    """Draws one number after the other, with every generator that there is."""

    def __len__(self) -> int:
        return 11

    def __iter__(self) -> Iterator[int]:
        for _ in range(11):
            yield (int(torch.randint(10, ())) + random.randrange(10) + np.random.randint(10)) % 10


TEN = TensorDataset(torch.arange(10))


def torchdatas(workers: int) -> Any:
    """Its sampler draws when it is made, and goes on from epoch to epoch."""
    kind: Any = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    return kind(TEN, 3, shuffle=True, num_workers=workers)


# Others are in the zoo.
LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(TEN, 4),
    "shuffled": lambda: DataLoader(TEN, 3, shuffle=True),
    "drop_last": lambda: DataLoader(TEN, 4, shuffle=True, drop_last=True),
    "more than there are": lambda: DataLoader(TEN, 20, shuffle=True),
    "some": lambda: DataLoader(TEN, 2, sampler=SubsetRandomSampler([1, 3, 5, 7, 9])),
    "lazy": lambda: DataLoader(TEN, 4, sampler=Lazy()),
    "own generator": lambda: DataLoader(
        TEN, 4, shuffle=True, generator=torch.Generator().manual_seed(1)
    ),
    "processes": lambda: DataLoader(TEN, 3, shuffle=True, num_workers=1),
    "torchdata": lambda: torchdatas(0),
    "torchdata, processes": lambda: torchdatas(1),
}


def parts_of(loader: DataLoader[Any], ranks: int) -> list[RankLoader]:
    return [
        RankLoader(loader, rank=rank, num_replicas=ranks, stream=RankStream(rank), training=True)
        for rank in range(ranks)
    ]


def seeded_again(made: Callable[[], DataLoader[Any]]) -> DataLoader[Any]:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    return made()


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        (name, ranks)
        for name in LOADERS
        for ranks in (2, 5)
        if ranks == 2 or "processes" not in name
    ],
)
def test_all_ranks_together_see_the_loaders_batches(name: str, ranks: int) -> None:
    """Each begins with the same random numbers; a step draws other numbers on every rank."""
    loader = seeded_again(LOADERS[name])
    expected = [samples.tolist() for _ in (0, 1) for (samples,) in loader]
    of_ranks = []
    for rank in range(ranks):
        part = parts_of(seeded_again(LOADERS[name]), ranks)[rank]
        own = []
        for epoch in (0, 1):
            part.begin(epoch)
            for number, (samples,) in enumerate(part):
                size = part.share(number).size
                assert len(samples) == max(size, 1), "none is empty"
                own.append(samples[:size].tolist())
                with part.stream.of_rank(Draws.STEP, epoch, number):
                    torch.rand(rank)
        of_ranks.append(own)
    for shares, batch in zip(zip(*of_ranks, strict=True), expected, strict=True):
        assert [*chain(*shares)] == batch
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


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
    (part, _) = parts_of(loader, 2)
    assert part.note == "mine"
    assert part.batch_size == 4
    assert part.sampler is loader.sampler
    assert part.batch_sampler is loader.batch_sampler
    part.worker_init_fn = print
    assert loader.worker_init_fn is print
    part.batch_sampler.batch_size = 5
    assert [len(samples) for (samples,) in part] == [3, 3]


def test_loaders_that_cannot_be_shared_are_rejected() -> None:
    class Collated(DataLoader[Any]):
        """Adds no method of its own."""

    class Own(DataLoader[Any]):
        def __iter__(self) -> Any:
            return iter(())

    reject_shared(Collated(TEN, 4), 2)
    reject_shared(Own(TEN, 4), 1)
    with pytest.raises(UserError, match=r"Own .* 2 ranks cannot share .*; .*strategy=Single"):
        reject_shared(Own(TEN, 4), 2)


class Noisy(Dataset[Tensor]):
    """A data set that augments."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        # A generator for each sample, as docs/data.md of a project says.
        rng = np.random.default_rng(np.random.randint(2**31))
        return index + torch.rand(()) * rng.random()


@pytest.mark.parametrize("workers", [0, 1])
def test_draws_of_a_seeded_data_set_depend_on_the_sample(workers: int) -> None:
    halves = Subset(seeded(Subset(Noisy(), range(2, 8)), seed=3), [5, 3, 1, 0])
    loader = DataLoader(halves, batch_size=4, num_workers=workers)
    before = torch.get_rng_state()
    whole = [halves[index] for index in range(4)]
    assert torch.equal(torch.get_rng_state(), before), "and leaves the generators alone"
    parts = parts_of(loader, 2)
    assert torch.equal(torch.cat([torch.cat(list(part)) for part in parts]), torch.stack(whole))
    set_epoch(loader, 1)
    later = torch.cat([torch.cat(list(part)) for part in parts])
    assert (later.floor() == torch.stack(whole).floor()).all()
    assert (later != torch.stack(whole)).all()


def test_ranks_draw_different_numbers_for_their_samples() -> None:
    for options in ({}, {"num_workers": 1}):
        drawn = []
        for part in parts_of(DataLoader(Noisy(), 8, **options), 2):  # type: ignore[arg-type]
            torch.manual_seed(1)
            np.random.seed(1)
            (samples,) = part
            drawn.append(samples % 1)
        assert not set(drawn[0].tolist()) & set(drawn[1].tolist())
