"""A rank's share of each global batch, base classes of loaders, and which batch is under way."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from ..compat.of_lightning import loaders_under_way, mode_of
from ..compat.of_torch import tree_leaves, tree_map
from ..errors import UserError
from .position import Passes


class Proxy:
    """Forwards every attribute that it does not define to the wrapped object.

    Attributes:
        _of: The name of the attribute that holds the wrapped object.
    """

    _of: str

    def __getattr__(self, name: str) -> Any:
        if name == self._of:  # not set yet during unpickling
            raise AttributeError(name)
        return getattr(getattr(self, self._of), name)

    def __len__(self) -> int:
        return len(getattr(self, self._of))


def unwrapped(loader: Any, kind: type[Proxy] = Proxy) -> Any:
    """The user's own loader; or what is wrapped by this kind of proxy, if it is."""
    while isinstance(loader, kind):
        loader = getattr(loader, loader._of)
    return loader


class Share(NamedTuple):
    """One rank's share of one global batch, as positions in the batch."""

    start: int
    stop: int
    total: int
    """Samples in the global batch."""
    is_of_several: bool = False
    """Whether it covers the batches of several loaders, so that the positions are meaningless."""

    @property
    def size(self) -> int:
        """Samples of this rank; 0 is possible if the batch is smaller than the number of ranks."""
        return self.stop - self.start

    @property
    def computed(self) -> "Share | None":
        """The rows that this rank computes with; None if they are of several loaders."""
        if self.is_of_several:
            return None
        # A rank with an empty share computes with the row before, which is another rank's.
        return self if self.size else self._replace(start=self.start - 1)


def share_of(total: int, rank: int, num_replicas: int) -> Share:
    """A rank's share of a batch; the lower ranks take one sample each of the remainder."""
    quotient, remainder = divmod(total, num_replicas)
    start = rank * quotient + min(rank, remainder)
    return Share(start, start + quotient + (rank < remainder), total)


def slice_of_rank(total: int, rank: int, num_replicas: int) -> slice:
    """The samples of a batch that a rank computes with.

    A rank with an empty share joins the step with the last sample, which has no weight.
    """
    start, stop = share_of(total, rank, num_replicas)[:2]
    return slice(start, stop) if stop > start else slice(total - 1, total)


def rows_of_rank(batch: Any, rank: int, num_replicas: int, name: str) -> tuple[Any, int]:
    """Take a rank's rows of a batch that the data set `name` yields as such (``batch_size=None``).

    Returns:
        The rows, and the number of samples in the batch.
    """
    leaves = tree_leaves(batch)
    sizes = {getattr(leaf, "layout", None) is torch.strided and leaf.shape[:1] for leaf in leaves}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    if num_replicas == 1:
        return batch, size[0] if size else 1
    if not size:
        raise UserError(
            f"strategy: {name} yields full batches (batch_size=None), which {num_replicas} ranks "
            "can share only if they contain only dense tensors with equally many rows; let it "
            "yield samples: DataLoader(stream, batch_size=..., collate_fn=...)"
        )
    part = slice_of_rank(size[0], rank, num_replicas)
    return tree_map(lambda rows: rows[part], batch), size[0]


def combined_share(shares: Sequence[Share]) -> Share:
    """A rank's shares of the batches of several loaders, as one share."""
    size, total = sum(share.size for share in shares), sum(share.total for share in shares)
    return shares[0] if len(shares) == 1 else Share(0, size, total, is_of_several=True)


def uneven_shares(shares: Sequence[Share], num_replicas: int) -> str | None:
    """A warning if the ranks cannot share the batches of several loaders evenly."""
    if len(shares) == 1 or not any(share.total % num_replicas for share in shares):
        return None
    sizes = " and ".join(str(share.total) for share in shares)
    return (
        f"{num_replicas} ranks cannot share the loaders' batches of {sizes} samples evenly: a mean "
        "over all samples is exact, a sum of the loaders' means is not; use drop_last=True and "
        f"batch sizes that are multiples of {num_replicas}"
    )


class TrackedLoader(Proxy):
    """Wraps a user's loader, and knows where it stands in an epoch of training.

    All other attributes are read from and set on the user's loader. Batches are numbered from 0 in
    every epoch; the numbers continue if a longer loader beside it makes this one start again.

    Args:
        loader: The user's loader.
        training: Whether it is a loader of training.

    Attributes:
        fingerprint: A checksum of the first global batch, or its indices, to compare ranks by.
        is_compared: Whether the ranks have compared it.
        keeps_workers: Whether the loader goes on with workers, which have drawn their seed before.
    """

    _of = "loader"
    fingerprint: int | None = None
    is_compared: bool = False
    keeps_workers: bool = False
    loader: Any
    training: bool
    passes: Passes
    _totals: dict[int, int]

    def __init__(self, loader: Any, training: bool) -> None:
        vars(self).update(loader=loader, training=training, passes=Passes(loader), _totals={})

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self) or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.loader, name, value)

    def begin(self, epoch: int) -> None:
        """Number batches from 0 again at the start of an epoch or an evaluation."""
        self._totals.clear()
        self.passes.begin()

    def trained(self, batch_idx: int) -> None:
        """Note that a global batch has been trained on, if this loader has yielded one."""
        if (total := self._totals.get(batch_idx)) is not None:
            self.passes.trained(batch_idx, total)

    def position(self) -> dict[str, Any] | None:
        """Where the epoch goes on, as plain data, independent of rank and world size."""
        return self.passes.position()

    def resume(self, position: dict[str, Any]) -> str | None:
        """Go on from what `position` returned; a line that says what that takes."""
        self.passes.resume(position)
        return None

    def _read_again(self, kind: str) -> str:
        number = self.passes.count
        return f"{kind} cannot restore its position; {number} batches are read again and dropped"


class SharedLoader(TrackedLoader):
    """Yields this rank's share of each batch of a user's loader.

    Args beside those of `TrackedLoader`:
        rank: This rank's number among the ranks that see different samples.
        num_replicas: The number of those ranks.
    """

    # What a user's loader would save is the position of one rank, or of none.
    state_dict: None = None
    load_state_dict: None = None
    rank: int
    num_replicas: int

    def __init__(self, loader: Any, rank: int, num_replicas: int, training: bool) -> None:
        super().__init__(loader, training)
        vars(self).update(rank=rank, num_replicas=num_replicas)

    def share(self, batch_idx: int) -> Share:
        """This rank's share of a global batch; 0 of 0 samples if there was no such batch."""
        for number in [number for number in self._totals if number < batch_idx]:
            del self._totals[number]
        return share_of(self._totals.get(batch_idx, 0), self.rank, self.num_replicas)


class GlobalBatch(NamedTuple):
    """A global batch, of one loader or of several."""

    position: tuple[int, ...]
    """Its position in the run, which seeds what this rank draws for it."""
    number: int = 0
    """Its number in the epoch, or in the evaluation of its loader."""
    loaders: Sequence[Any] = ()
    """The loaders that contribute to it."""
    shares: Sequence[Share] = ()
    """This rank's share of each loader's batch; none if ranks do not share one of them."""

    @property
    def samples(self) -> int | None:
        """Its samples on all ranks; None if ranks do not share it."""
        return sum(share.total for share in self.shares) if self.shares else None

    @property
    def share(self) -> Share | None:
        """This rank's share of it; None if ranks do not share it."""
        return combined_share(self.shares) if self.shares else None

    def trained(self) -> None:
        """Tell the loaders that the batch has been trained on."""
        for loader in self.loaders:
            loader.trained(self.number)


class GlobalBatches:
    """Follows which batch is under way. Lightning does not tell a strategy in an evaluation."""

    def __init__(self) -> None:
        # How many batches of each loader an evaluation has moved to the device, and the last one.
        self._moved: Counter[int] = Counter()
        self._evaluated = 0, 0

    def begin_evaluation(self) -> None:
        self._moved.clear()

    def moves(self, trainer: Trainer, dataloader_idx: int) -> None:
        """Count a batch that an evaluation moves to the device."""
        if not trainer.training and loaders_under_way(trainer) is not None:
            self._evaluated = dataloader_idx, self._moved[dataloader_idx]
            self._moved[dataloader_idx] += 1

    def position(self, trainer: Trainer) -> tuple[int, ...]:
        """The position of the batch under way in the run."""
        trained: int = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        return (trained,) if trainer.training else (trained, *self._evaluated)

    def take(self, trainer: Trainer) -> GlobalBatch:
        """The batch under way, as a step begins: the one place where a share is looked up.

        It cannot travel with its batch. What a loader yields, Lightning passes to the precision
        plugin and to the user's `on_before_batch_transfer` before a strategy sees it, and neither
        knows of shares; no number comes with it either.
        """
        position, combined = self.position(trainer), loaders_under_way(trainer)
        if combined is None:
            return GlobalBatch(position)
        loader, number = (0, trainer.fit_loop.batch_idx) if trainer.training else self._evaluated
        loaders = loaders_in_step(combined, loader)
        if trainer.training and not all(isinstance(each, TrackedLoader) for each in loaders):
            raise UserError(
                "strategy: a hook has replaced a loader in trainer.fit_loop by one whose batches "
                "are not shared, nor found again by a resume; let train_dataloader return it"
            )
        shares = [each.share(number) for each in shared_in_step(loaders, number)]
        return GlobalBatch(position, number, loaders, shares)


def loaders_in_step(combined: CombinedLoader, dataloader_idx: int = 0) -> list[Any]:
    """The loaders that contribute to a step."""
    loaders: list[Any] = combined.flattened
    if mode_of(combined) == "sequential":  # as in an evaluation
        loaders = loaders[dataloader_idx : dataloader_idx + 1]
    return loaders


def shared_in_step(loaders: Sequence[Any], number: int) -> list[SharedLoader]:
    """Those of a step's loaders that have a batch; none if ranks do not share one of them."""
    if not all(isinstance(loader, SharedLoader) for loader in loaders):
        return []
    return [loader for loader in loaders if loader.share(number).total]
