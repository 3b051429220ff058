"""A stream is shared out by sample: each rank reads all of it and keeps its part of each batch."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING, largest_difference
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from zoo.data import Stateful, Whole
from zoo.train import LIGHTNING, predicted

import onecurve
from onecurve.launch.environment import unchanged_environment
from onecurve.strategies.loader import shard
from onecurve.strategies.stream import StreamLoader


class Noisy(IterableDataset[Tensor]):
    """Shares itself out among worker processes, in an order and with noise that are drawn."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in torch.randperm(23)[first::step].tolist():
            yield self.epoch * 100 + number + torch.rand(())


def shares(loader: DataLoader[Any], ranks: int, **options: Any) -> list[StreamLoader]:
    options = {"seed": 3, "training": True} | options
    found: Any = [shard(loader, rank=rank, num_replicas=ranks, **options) for rank in range(ranks)]
    return found


def epoch(parts: list[StreamLoader], number: int = 0) -> list[list[float]]:
    """What all ranks together see, batch by batch, without what a rank without a share is given."""
    for part in parts:
        part.set_epoch(number)
    batches = []
    for index, of_ranks in enumerate(zip(*parts, strict=True)):
        sizes = [part.share(index).size for part in parts]
        assert max(sizes) - min(sizes) <= 1
        batches.append(
            [v for batch, size in zip(of_ranks, sizes, strict=True) for v in batch[:size].tolist()]
        )
    return batches


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop_last": True},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True, "drop_last": True},
    ],
)
def test_ranks_together_see_what_one_sees(options: dict[str, Any]) -> None:
    loader = DataLoader(Noisy(), 5, **options)
    whole, parts = shares(loader, 1), shares(loader, 3)
    for number in range(2):
        # Whatever was drawn before.
        torch.manual_seed(number)
        seen = epoch(whole, number)
        torch.manual_seed(7)
        assert epoch(parts, number) == seen
        assert {int(sample) // 100 for batch in seen for sample in batch} == {number}
        sizes = [len(batch) for batch in seen]
        if not options:
            assert sizes == [5, 5, 5, 5, 3]
            assert len({int(sample) for batch in seen for sample in batch}) == 23
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    epoch(whole)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_processes_that_read_end_with_their_loader() -> None:
    """A collection of garbage would end their queues first, and then wait 5 s for each of them."""
    loader = DataLoader(Noisy(), 5, num_workers=1, persistent_workers=True)
    parts = shares(loader, 1)
    assert len(epoch(parts)) == 5
    last = weakref.ref(parts[0])
    gc.disable()
    try:
        parts.clear()
        assert last() is None
    finally:
        gc.enable()


class Lazy(IterableDataset[Any]):
    """Reads what its rank keeps."""

    def __init__(self) -> None:
        self.part = (0, 1, 1)
        self.read = 0

    def keep(self, *part: int) -> None:
        self.part = (part[0], part[1], part[2])

    def __iter__(self) -> Iterator[Any]:
        start, stop, size = self.part
        for number in range(22):
            is_kept = start <= number % size < stop
            self.read += is_kept
            yield torch.tensor(float(number)) if is_kept else None


def test_a_stream_may_leave_out_what_other_ranks_keep() -> None:
    parts = [
        shard(DataLoader(Lazy(), 5, drop_last=True), rank=r, num_replicas=2, seed=0, training=True)
        for r in range(2)
    ]
    seen: Any = parts
    batches = epoch(seen)
    assert batches == [[float(n) for n in range(first, first + 5)] for first in (0, 5, 10, 15)]
    assert [part.dataset.read for part in seen] == [14, 8]


def test_whole_batches_are_cut_by_rows_or_refused() -> None:
    loader = DataLoader(Whole(), None)
    (whole,), parts = shares(loader, 1), shares(loader, 2)
    for index, (batch, *of_ranks) in enumerate(zip(whole, *parts, strict=True)):
        sizes = [part.share(index).size for part in parts]
        cut = [torch.cat([b[k][:s] for b, s in zip(of_ranks, sizes, strict=True)]) for k in (0, 1)]
        assert all(map(torch.equal, cut, batch))

    class Texts(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield ["a", "b"]

    with pytest.raises(onecurve.UserError, match=r"Texts yields whole batches .* let it yield sam"):
        next(iter(shares(DataLoader(Texts(), None), 2)[0]))


def test_what_is_read_ahead_is_read_again_and_looking_consumes_nothing() -> None:
    dataset = Stateful()
    (loader,) = shares(DataLoader(dataset, 4), 1)
    first = loader.first()[0]
    reading = iter(loader)
    assert torch.equal(next(reading)[0], first)
    loader.consume(0)
    ahead = next(reading)[0]
    again = iter(loader)
    assert torch.equal(next(again)[0][1:], ahead[1:]), "but for the noise of the first sample"
    assert len(dataset.left) == 21 - 8


def test_a_worker_may_set_what_is_the_data_sets() -> None:
    def start(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.start = 10.0 * worker

    class FromStart(IterableDataset[Tensor]):
        start = -1.0

        def __iter__(self) -> Iterator[Tensor]:
            yield from torch.arange(3) + self.start

    class Indexed(torch.utils.data.Dataset[Tensor]):
        start = -1.0

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Tensor:
            return torch.tensor(self.start)

    options: Any = {"num_workers": 2, "worker_init_fn": start}
    (stream,) = shares(DataLoader(FromStart(), 3, **options), 1)
    assert [batch.tolist() for batch in stream] == [[0, 1, 2], [10, 11, 12]]
    loader: Any = shares(DataLoader(Indexed(), 1, **options), 1)[0]
    assert [batch.item() for batch in loader] == [0, 10]


@pytest.mark.compares
def test_predictions_of_a_stream_are_in_its_order() -> None:
    with unchanged_environment(LIGHTNING):
        single = predicted("single")
    ranks = warm_ranks.start_ranks(
        "zoo.train.predicted", ("ddp",), processes=2, max_restarts=0, logs=None
    )
    assert [len(rows) for rows in ranks] == [21, 21]
    curves = [tree_flatten(rows)[0] for rows in (single, ranks)]
    assert largest_difference(*curves) <= ROUNDING
