"""Streams: each rank reads all samples, and keeps its share of each batch."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import ROUNDING, largest_difference
from lightning.pytorch import seed_everything
from several_fits import LIGHTNING, quiet_trainer
from torch import Tensor
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from zoo import data, tasks

import onecurve
from onecurve import seeded
from onecurve.app.run.predict import Predictions, add_predict_step
from onecurve.batch.share import rows_of_rank
from onecurve.batch.stream import StreamLoader
from onecurve.machine import unchanged_environment


class Noisy(IterableDataset[Tensor]):
    """Shares itself out among worker processes, in an order and with noise that are drawn."""

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in torch.randperm(23)[first::step].tolist():
            yield number + torch.rand(())


def shares(loader: DataLoader[Any], ranks: int) -> list[StreamLoader]:
    return [
        StreamLoader(loader, rank=rank, num_replicas=ranks, training=True) for rank in range(ranks)
    ]


def epochs(part: StreamLoader, numbers: Sequence[int]) -> list[list[float]]:
    """What a rank sees of several epochs, without what it is given where it has no share."""
    torch.manual_seed(1)
    batches = []
    for number in numbers:
        part.begin(number)
        for index, batch in enumerate(part):
            batches.append(batch[: part.share(index).size].tolist())
            part.trained(index)
    return batches


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop_last": True},
        pytest.param({"num_workers": 2}, marks=pytest.mark.long),
        {"num_workers": 2, "persistent_workers": True, "drop_last": True},
    ],
)
def test_all_ranks_together_see_the_samples_of_the_stream(options: dict[str, Any]) -> None:
    loader = DataLoader(Noisy(), 5, **options)
    torch.manual_seed(1)
    whole = [batch.tolist() for _ in (0, 1) for batch in loader]
    of_ranks = [epochs(part, (0, 1)) for part in shares(loader, 3)]
    assert [[*chain(*batch)] for batch in zip(*of_ranks, strict=True)] == whole
    for batch in zip(*of_ranks, strict=True):
        sizes = [len(share) for share in batch]
        assert max(sizes) - min(sizes) <= 1
    if not options:
        assert [len(batch) for batch in whole] == 2 * [5, 5, 5, 5, 3]


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


def test_workers_end_with_their_loader() -> None:
    """Garbage collection would close their queues first, and then wait 5 s for each worker."""
    loader = DataLoader(Noisy(), 5, num_workers=1, persistent_workers=True)
    parts = shares(loader, 1)
    assert len(epochs(parts[0], (0,))) == 5
    last = weakref.ref(parts[0])
    gc.disable()
    try:
        parts.clear()
        assert last() is None
    finally:
        gc.enable()


def test_full_batches_without_rows_are_rejected() -> None:
    """Others are shared by rows: see the table of tests/parity."""

    class Texts(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield ["a", "b"]

    with pytest.raises(onecurve.UserError, match=r"Texts yields full batches .* let it yield sam"):
        next(iter(shares(DataLoader(Texts(), None), 2)[0]))
    batch = {"nodes": torch.eye(4), "near": torch.eye(4).to_sparse()}
    with pytest.raises(onecurve.UserError, match=r"Graphs yields full batches .* only dense"):
        rows_of_rank(batch, 0, 2, "Graphs")


class FromStart(IterableDataset[Tensor]):
    start = -1.0

    def __iter__(self) -> Iterator[Tensor]:
        yield from torch.arange(3) + self.start


def test_a_worker_may_set_attributes_of_the_data_set() -> None:
    def start(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.start = 10.0 * worker

    (stream,) = shares(DataLoader(FromStart(), 3, num_workers=2, worker_init_fn=start), 1)
    assert [batch.tolist() for batch in stream] == [[0, 1, 2], [10, 11, 12]]


def predicted(strategy: Any, devices: int) -> list[Any]:
    """What is predicted for two streams, whose last batches are smaller than the ranks."""
    seed_everything(1, verbose=False)
    kept, module = Predictions(), tasks.Plain()
    add_predict_step(module)
    trainer = quiet_trainer(strategy, devices, precision="64-true", callbacks=[kept])
    trainer.predict(module, [data.stream(), data.whole_batches()], return_predictions=False)
    return [None if rows is None else rows.tolist() for rows in kept.joined()]


@pytest.mark.compares
def test_predictions_of_a_stream_are_in_its_order() -> None:
    with unchanged_environment(LIGHTNING):
        single = predicted(onecurve.Single(), 1)
    ranks = warm_ranks.run(predicted, onecurve.DDP(), 2)
    assert [len(rows) for rows in ranks] == [21, 21]
    curves = [tree_flatten(rows)[0] for rows in (single, ranks)]
    assert largest_difference(*curves) <= ROUNDING
