"""Every sample of an epoch is seen exactly once, in the loader's order, by any number of ranks.

That samplers for ranks are replaced is in rows of tests/parity/cases.py.
"""

import random
from collections.abc import Iterator
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
from onecurve.batch.loader import RankLoader, has_indices, reject_shared
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
# Others are in the zoo.
LOADERS: dict[str, dict[str, Any]] = {
    "in order": {"batch_size": 4},
    "shuffled": {"batch_size": 3, "shuffle": True},
    "drop_last": {"batch_size": 4, "shuffle": True, "drop_last": True},
    "more than there are": {"batch_size": 20, "shuffle": True},
    "some": {"sampler": SubsetRandomSampler([1, 3, 5, 7, 9]), "batch_size": 2},
    "lazy": {"sampler": Lazy(), "batch_size": 4},
    "own generator": {"batch_size": 4, "shuffle": True, "generator": torch.Generator()},
    "processes": {"batch_size": 3, "shuffle": True, "num_workers": 1},
}


def parts_of(loader: DataLoader[Any], ranks: int, training: bool = True) -> list[RankLoader]:
    return [
        RankLoader(
            loader, rank=rank, num_replicas=ranks, stream=RankStream(rank), training=training
        )
        for rank in range(ranks)
    ]


def seen(loader: DataLoader[Any], ranks: int) -> list[list[int]]:
    """What all ranks together see, batch by batch; each begins with the same random numbers."""
    of_ranks = []
    for rank, part in enumerate(parts_of(loader, ranks)):
        seed(loader)
        own = []
        for epoch in (0, 1):
            part.begin(epoch)
            for number, (samples,) in enumerate(part):
                share = part.share(number)
                assert len(samples) == max(share.size, 1)
                own.append(samples[: share.size].tolist())
                with part.stream.of_rank(Draws.STEP, epoch, number):
                    torch.rand(rank)  # a step draws other numbers on every rank
        of_ranks.append(own)
    return [list(chain(*shares)) for shares in zip(*of_ranks, strict=True)]


def seed(loader: DataLoader[Any]) -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    if loader.generator is not None:
        loader.generator.manual_seed(1)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [*((name, 2) for name in LOADERS), *((name, 5) for name in LOADERS if name != "processes")],
)
def test_all_ranks_together_see_the_loaders_batches(name: str, ranks: int) -> None:
    loader = DataLoader(TEN, **LOADERS[name])
    seed(loader)
    epochs = [[samples.tolist() for (samples,) in loader] for _ in (0, 1)]
    assert seen(loader, ranks) == [*epochs[0], *epochs[1]]


@pytest.mark.parametrize("workers", [0, 1])
def test_torchdatas_loader_keeps_its_own_order(workers: int) -> None:
    """Its sampler draws when it is made, and goes on from epoch to epoch."""
    kind: Any = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def loader() -> Any:
        torch.manual_seed(1)
        return kind(TEN, 3, shuffle=True, num_workers=workers)

    plain = loader()
    whole = [samples.tolist() for _ in (0, 1) for (samples,) in plain]
    of_ranks: list[list[list[int]]] = []
    for rank in (0, 1):
        part = parts_of(loader(), 2)[rank]
        of_ranks.append([])
        for epoch in (0, 1):
            part.begin(epoch)
            for number, (samples,) in enumerate(part):
                of_ranks[rank].append(samples[: part.share(number).size].tolist())
    assert [one + other for one, other in zip(*of_ranks, strict=True)] == whole


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


def test_shares_differ_by_at_most_one_sample_and_none_is_empty() -> None:
    parts = parts_of(DataLoader(TEN, 9), 2)
    batches = [[len(samples) for (samples,) in part] for part in parts]
    assert batches == [[5, 1], [4, 1]]
    assert [part.share(0).size for part in parts] == [5, 4]
    assert [part.share(1).size for part in parts] == [1, 0]
    assert parts[1].share(2).total == 0, "there is none"


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
    assert not has_indices(Own(TEN))
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
