"""Passes over what an epoch has been trained on, so that a run resumes with the rest.

A loader with indices is passed over without reading a sample; another one is read.
"""

from collections.abc import Callable, Iterator
from copy import copy
from itertools import chain
from typing import Any

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader

from ..compat.of_lightning import mode_of
from ..errors import UserError
from .loader import RankLoader, draw_base_seed, has_indices
from .position import Position
from .random import State, set_state
from .share import Proxy, ResumedSampler
from .stream import StreamLoader, is_stateful

WAY_OUT = "or resume from a checkpoint that was written at the end of an epoch"


def replay_trained(
    combined: CombinedLoader, position: Position, first: State | None, say: Callable[[str], None]
) -> list[Any]:
    """Loaders that start at a position, in place of those of an epoch.

    Args:
        combined: The loaders, whose iterators would be made next.
        position: What `batches` of the epoch to pass over.
        first: The generators' state before the first batch, if it is known.
        say: Prints what is read again.
    """
    loaders: list[Any] = combined.flattened
    replays = {
        number: _replay(loader, position, say)
        for number, loader in enumerate(loaders)
        if not (loader.is_put if isinstance(loader, StreamLoader) else is_stateful(loader))
    }
    # Shorter loaders start again beside longer ones, as in training.
    replaying = CombinedLoader(list(replays.values()), mode_of(combined))
    iter(replaying)
    if first is not None:
        set_state(first)
    passed = 0
    try:
        while passed < position.batches:
            if replays:
                next(replaying)
            passed += 1
    except StopIteration:
        raise UserError(
            f"resume: the checkpoint was written inside an epoch, after {position.batches} "
            f"batches, and there are {passed} now; leave the batch size and the data as they "
            f"were, {WAY_OUT}"
        ) from None
    only = next(iter(replays.values())) if len(replays) == 1 else None
    # Samples can be counted only if the loader has a batch sampler.
    if only and only.counts and position.rng and position.samples not in (None, only.samples):
        raise UserError(
            f"resume: the checkpoint was written inside an epoch, after {position.samples} samples "
            f"in {position.batches} batches, which have {only.samples} now; leave the batch size "
            f"and the data as they were, {WAY_OUT}"
        )
    return [
        replays[number].rest(position.batches) if number in replays else loader
        for number, loader in enumerate(loaders)
    ]


def _replay(
    loader: Any, position: Position, say: Callable[[str], None]
) -> "IndexReplay | BatchReplay":
    own = loader.loader if isinstance(loader, RankLoader) else loader
    if isinstance(own, DataLoader) and has_indices(own):
        # Workers that persist have their seed from the first epoch.
        draws_seed = not (own.persistent_workers and position.epoch)
        return IndexReplay(loader, draws_ahead(loader), draws_seed)
    is_read = isinstance(loader, DataLoader | StreamLoader)
    say(
        f"{type(loader.dataset if is_read else loader).__name__} cannot restore its position; "
        f"{position.batches} batches are read again and dropped"
    )
    return BatchReplay(loader)


class IndexReplay:
    """Iterates over the indices of a loader's batches without reading samples.

    Args:
        loader: The user's loader, or our wrapper of it.
        draws_ahead: Whether the loader draws its first indices when its iterator is made.
        draws_seed: Whether it draws a seed for its workers before.

    Attributes:
        counts: Whether samples can be counted, which only a batch sampler allows.
        samples: Samples that it has passed since its iterator was last made.
    """

    def __init__(self, loader: Any, draws_ahead: bool, draws_seed: bool) -> None:
        self.loader = loader
        self.draws_ahead = draws_ahead
        self.draws_seed = draws_seed
        self.counts = loader.batch_sampler is not None
        self.samples = 0

    def __iter__(self) -> Iterator[Any]:
        if self.draws_seed:
            draw_base_seed(self.loader)
            self.draws_seed = not getattr(self.loader, "persistent_workers", False)
        batches = self.loader.batch_sampler
        self._left = iter(self.loader.sampler if batches is None else batches)
        self._ahead = [next(self._left)] if self.draws_ahead else []
        self.samples = 0
        return self

    def __next__(self) -> Any:
        indices = self._ahead.pop() if self._ahead else next(self._left)
        self.samples += len(indices) if hasattr(indices, "__len__") else 1
        return indices

    def rest(self, number: int) -> Any:
        """The loader, whose next pass starts where this replay ends, after `number` batches."""
        loader, left = self.loader, iter(self.__next__, None)
        if isinstance(loader, RankLoader):
            loader.resume(left, number)
            return loader
        rest: DataLoader[Any] = copy(loader)
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        vars(rest).update({name: ResumedSampler(getattr(loader, name), left), "_iterator": None})
        return rest


class BatchReplay:
    """Reads batches of a loader that has no indices and cannot restore its position."""

    counts = False
    samples = 0

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        left = iter(self.loader)
        # Lightning prefetches a batch to find out which is the last.
        self._left = left if sized_len(self.loader) is not None else chain([next(left)], left)
        return self

    def __next__(self) -> Any:
        return next(self._left)

    def rest(self, number: int) -> Any:
        """What is left after `number` batches, for one pass."""
        if isinstance(self.loader, StreamLoader):
            self.loader.trained(number - 1)
        return StartedLoader(self.loader, self._left)


class StartedLoader(Proxy):
    """A loader whose iterator exists already; an empty one until the epoch to be resumed starts.

    It has `state_dict`, so that Lightning does not warn that the loader cannot be resumed.
    """

    _of = "loader"

    def __init__(self, loader: Any, left: Iterator[Any] | None = None) -> None:
        self.loader = loader
        self.left = iter(()) if left is None else left

    def __iter__(self) -> Iterator[Any]:
        return self.left

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing: `TrainingEpochs` restores the position."""


def draws_ahead(loader: Any) -> bool:
    """Whether a loader draws its first indices when its iterator is made.

    It does so with workers, and where Lightning prefetches a batch to find out which is the last.
    """
    batches = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return loader.num_workers > 0 or not hasattr(batches, "__len__")
