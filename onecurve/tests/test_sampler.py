"""Every sample of an epoch is seen exactly once, whatever the number of ranks."""

import random
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from onecurve.errors import UserError
from onecurve.strategies.batches import Own, Permuted
from onecurve.strategies.loader import shard
from onecurve.strategies.sampler import GlobalBatchSampler


def samplers(
    num_samples: int, batch_size: int, ranks: int, *, drop_last: bool = False, merge: bool = False
) -> list[GlobalBatchSampler]:
    return [
        GlobalBatchSampler(
            Permuted(num_samples, batch_size, shuffle=True, drop_last=drop_last),
            seed=3,
            rank=rank,
            num_replicas=ranks,
            merge=merge,
        )
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize(("num_samples", "batch_size"), [(20, 5), (23, 10), (7, 10), (100, 32)])
def test_ranks_share_each_global_batch(num_samples: int, batch_size: int, ranks: int) -> None:
    parts = samplers(num_samples, batch_size, ranks)
    whole = list(samplers(num_samples, batch_size, 1)[0])
    assert {len(part) for part in parts} == {len(whole)}
    for batch_idx, batch in enumerate(whole):
        shares = [part.share(batch_idx) for part in parts]
        assert sum(share.size for share in shares) == len(batch)
        assert max(share.size for share in shares) - min(share.size for share in shares) <= 1
    for batches in zip(whole, *parts, strict=True):
        batch, *shares_of_batch = batches
        shares_seen = list(chain.from_iterable(shares_of_batch))
        if len(batch) >= ranks:
            assert shares_seen == batch


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    first, second = samplers(50, 10, 1)[0], samplers(50, 10, 1)[0]
    assert list(first) == list(second)
    second.set_epoch(1)
    assert list(first) != list(second)
    first.set_epoch(1)
    assert list(first) == list(second)
    other_seed = GlobalBatchSampler(Permuted(50, 10, shuffle=True), seed=4)
    assert list(other_seed) != list(samplers(50, 10, 1)[0])


def test_a_rank_without_a_share_gets_one_sample_that_weighs_nothing() -> None:
    sampler = samplers(21, 10, 2)[1]
    assert [len(batch) for batch in sampler] == [5, 5, 1]
    assert sampler.share(2).size == 0


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_evaluation_repeats_nothing_and_leaves_no_rank_out(ranks: int) -> None:
    parts = samplers(21, 10, ranks, merge=True)
    seen = sorted(chain.from_iterable(chain.from_iterable(parts)))
    assert seen == list(range(21))
    assert all(part.share(batch_idx).size for part in parts for batch_idx in range(len(part)))


def test_evaluation_refuses_fewer_samples_than_ranks() -> None:
    with pytest.raises(ValueError, match="2 samples cannot be shared by 3 ranks"):
        len(samplers(2, 10, 3, merge=True)[0])


@pytest.mark.parametrize("ranks_after", [1, 2, 3])
def test_an_interrupted_epoch_goes_on_under_another_world_size(ranks_after: int) -> None:
    before = samplers(97, 10, 2)
    seen = [
        next(batch for i, batch in enumerate(part) if i == b) for b in range(4) for part in before
    ]
    for part in before:
        part.consumed = 40
    after = samplers(97, 10, ranks_after)
    for part in after:
        part.load_state_dict(before[0].state_dict())
    rest = chain.from_iterable(chain.from_iterable(after))
    assert sorted([*chain.from_iterable(seen), *rest]) == list(range(97))


def test_a_finished_epoch_goes_on_with_the_next() -> None:
    sampler = samplers(20, 10, 1)[0]
    sampler.load_state_dict({"seed": 3, "epoch": 4, "consumed": 20})
    assert (sampler.epoch, sampler.first_batch()) == (5, 0)


def test_drop_last_leaves_the_tail_out() -> None:
    assert [len(batch) for batch in samplers(25, 10, 1, drop_last=True)[0]] == [10, 10]


def test_an_ordinary_loader_is_shared() -> None:
    data = TensorDataset(torch.arange(10))
    loader = DataLoader(data, batch_size=4, shuffle=False)
    parts = [shard(loader, rank=r, num_replicas=2, seed=0, training=True) for r in range(2)]
    assert [[batch[0].tolist() for batch in part] for part in parts] == [
        [[0, 1], [4, 5], [8]],
        [[2, 3], [6, 7], [9]],
    ]


def seen(loader: DataLoader[Any], ranks: int, **options: Any) -> list[list[int]]:
    """What all ranks together see, batch by batch."""
    options = {"seed": 3, "training": True} | options
    parts = [shard(loader, rank=rank, num_replicas=ranks, **options) for rank in range(ranks)]
    counts = [
        [part.batch_sampler.share(number).size for part in parts] for number in range(len(parts[0]))
    ]
    return [
        [
            int(index)
            for (share,), count in zip(shares, sizes, strict=True)
            for index in share[:count]
        ]
        for shares, sizes in zip(zip(*parts, strict=True), counts, strict=True)
    ]


class ByLength(Sampler[list[int]]):
    """A batch sampler as people write them: batches of other sizes, drawn in another order."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[0, 1], [2, 3, 4, 5, 6], [7, 8, 9]]
        random.shuffle(batches)
        yield from batches


TEN = TensorDataset(torch.arange(10))
OWN = {
    "weighted": {"sampler": WeightedRandomSampler([*[1.0] * 5, *[9.0] * 5], 25), "batch_size": 4},
    "with replacement": {
        "sampler": RandomSampler(TEN, replacement=True, num_samples=30),
        "batch_size": 7,
    },
    "some": {"sampler": SubsetRandomSampler([1, 3, 5, 7, 9]), "batch_size": 2},
    "by length": {"batch_sampler": ByLength()},
    "own generator": {
        "sampler": WeightedRandomSampler([1.0] * 10, 20, generator=torch.Generator()),
        "batch_size": 5,
    },
}


@pytest.mark.parametrize("name", OWN)
def test_what_a_sampler_of_ones_own_yields_is_shared(name: str) -> None:
    loader = DataLoader(TEN, **OWN[name])
    torch.manual_seed(1)
    whole = seen(loader, 1)
    # Its own numbers and sizes, and the same whatever was drawn before.
    torch.manual_seed(2)
    assert [len(batch) for batch in whole] == [len(batch) for batch in seen(loader, 2)]
    assert seen(loader, 2) == whole
    assert sum(len(batch) for batch in whole) == {"weighted": 25, "with replacement": 30, "some": 5,
        "by length": 10, "own generator": 20}[name]  # fmt: skip


def test_a_sampler_of_ones_own_draws_anew_in_each_epoch_and_goes_on_inside() -> None:
    loader = DataLoader(TEN, **OWN["own generator"])
    first = Own(loader.batch_sampler)
    epochs = [list(first.epoch(3, number).order) for number in (0, 1)]
    assert epochs[0] != epochs[1]
    again = GlobalBatchSampler(Own(loader.batch_sampler), seed=3)
    again.load_state_dict({"seed": 3, "epoch": 1, "consumed": 10})
    assert [index for batch in again for index in batch] == epochs[1][10:]


def test_what_cannot_be_shared_is_kept_or_refused() -> None:
    class Loader(DataLoader[Any]):
        """Of one's own."""

    loader = Loader(TEN, batch_size=4)
    assert shard(loader, rank=0, num_replicas=1, seed=0, training=True) is loader
    with pytest.raises(UserError, match=r"Loader decides .* 2 ranks; .*strategy=single"):
        shard(loader, rank=0, num_replicas=2, seed=0, training=True)
    cut = DataLoader(TEN, sampler=DistributedSampler(TEN, num_replicas=2, rank=0))
    with pytest.raises(UserError, match=r"has a DistributedSampler.* leave it out"):
        shard(cut, rank=0, num_replicas=2, seed=0, training=True)


def test_a_limit_leaves_the_tail_out_under_every_number_of_ranks() -> None:
    loader = DataLoader(TEN, batch_size=3)
    for limit in (3, 0.75):
        parts = [
            shard(loader, rank=rank, num_replicas=2, seed=0, training=False, limit=limit)
            for rank in range(2)
        ]
        # Lightning leaves after three of these.
        assert {len(part) for part in parts} == {4}
        assert [len(batch) for (batch,) in parts[0]][:3] == [2, 2, 2]
    assert [len(batch) for batch in seen(loader, 2, training=False)] == [3, 3, 4]


class Noisy(Dataset[Tensor]):
    """A data set that augments."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        # A generator for each sample, as docs/data.md of a project says.
        rng = np.random.default_rng(np.random.randint(2**31))
        return index + torch.rand(()) * rng.random()


def test_augmentation_inside_a_subset_is_drawn_by_sample() -> None:
    halves = Subset(Subset(Noisy(), range(2, 8)), [5, 3, 1, 0])
    whole, first, second = (
        torch.cat(list(shard(DataLoader(halves, batch_size=4), **ranks, seed=0, training=True)))
        for ranks in (
            {"rank": 0, "num_replicas": 1},
            {"rank": 0, "num_replicas": 2},
            {"rank": 1, "num_replicas": 2},
        )
    )
    assert torch.equal(whole, torch.cat([first, second]))


def test_batches_of_another_size_do_not_go_on_inside_an_epoch() -> None:
    before = samplers(103, 8, 1)[0]
    before.consume(4)
    with pytest.raises(ValueError, match="no batch ends at sample 40"):
        samplers(103, 16, 1)[0].load_state_dict(before.state_dict())
    # Where a batch ends there, or the epoch is over, they do.
    half = samplers(103, 4, 1)[0]
    half.load_state_dict(before.state_dict())
    assert half.first_batch() == 10
    whole = samplers(103, 8, 1, drop_last=True)[0]
    whole.consume(11)
    other = samplers(103, 50, 1, drop_last=True)[0]
    other.load_state_dict(whole.state_dict())
    assert (other.epoch, other.consumed) == (1, 0)


def test_a_batch_counts_once_however_often_it_is_trained_on() -> None:
    sampler = samplers(20, 10, 2)[0]
    assert [sampler.consume(0), sampler.consume(0), sampler.consume(1)] == [10, 0, 10]


def test_a_loader_beside_a_longer_one_draws_anew_in_each_pass_and_goes_on_inside() -> None:
    sampler = samplers(10, 4, 1)[0]
    sampler.repeats = True
    first = list(sampler)
    assert list(sampler) == first, "nothing was trained on in between"
    for number in range(3):
        sampler.consume(number)
    second = list(sampler)
    assert sorted(chain(*second)) == sorted(chain(*first))
    assert second != first
    assert [sampler.share(number).total for number in range(3, 6)] == [4, 4, 2]
    # Where a pass is over and the epoch is not, the next pass is drawn.
    for number, rest in ((2, second), (3, second[1:])):
        sampler.consume(number)
        again = samplers(10, 4, 1)[0]
        again.load_state_dict(sampler.state_dict(), is_inside=True)
        assert list(again) == rest
