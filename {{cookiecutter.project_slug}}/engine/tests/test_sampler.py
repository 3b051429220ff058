"""Every sample of an epoch is seen exactly once, whatever the number of ranks."""

from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from onecurve.errors import UserError
from onecurve.strategies.loader import shard
from onecurve.strategies.sampler import GlobalBatchSampler


def samplers(
    num_samples: int, batch_size: int, ranks: int, **options: bool
) -> list[GlobalBatchSampler]:
    return [
        GlobalBatchSampler(
            num_samples, batch_size, shuffle=True, seed=3, rank=rank, num_replicas=ranks, **options
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
    other_seed = GlobalBatchSampler(50, 10, shuffle=True, seed=4)
    assert list(other_seed) != list(samplers(50, 10, 1)[0])


def test_a_rank_without_a_share_gets_one_sample_that_weighs_nothing() -> None:
    sampler = samplers(21, 10, 2)[1]
    assert [len(batch) for batch in sampler] == [5, 5, 1]
    assert sampler.share(2).size == 0


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_evaluation_repeats_nothing_and_leaves_no_rank_out(ranks: int) -> None:
    parts = samplers(21, 10, ranks, merge_tail=True)
    seen = sorted(chain.from_iterable(chain.from_iterable(parts)))
    assert seen == list(range(21))
    assert all(part.share(batch_idx).size for part in parts for batch_idx in range(len(part)))


def test_evaluation_refuses_fewer_samples_than_ranks() -> None:
    with pytest.raises(ValueError, match="2 samples cannot be shared by 3 ranks"):
        GlobalBatchSampler(2, 10, shuffle=False, num_replicas=3, merge_tail=True)


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


def test_a_loader_with_a_sampler_of_its_own_is_kept_or_refused() -> None:
    data = TensorDataset(torch.arange(4))
    weighted = WeightedRandomSampler([1.0, 0.0, 0.0, 0.0], num_samples=4)
    loader = DataLoader(data, batch_size=4, sampler=weighted)
    assert shard(loader, rank=0, num_replicas=1, seed=0, training=True) is loader
    with pytest.raises(UserError, match=r"cannot be shared by 2 ranks.*strategy=single"):
        shard(loader, rank=0, num_replicas=2, seed=0, training=True)
