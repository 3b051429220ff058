"""Follows a fit from epoch to epoch, so that a checkpoint of any step resumes exactly.

A checkpoint holds the generators' states in ``random``: *now*, when the *iterator*s of the epoch's
loaders were made, and before its *first* batch was read. A resume inside an epoch draws its order
again from the latter two, walks the samplers to where the run stood, and goes on *now*. So it sees
the samples that were left, under any strategy and world size, whatever sampler the loader has.

    setup_data: process_dataloader for each loader, then their iterators      (of the first epoch)
    on_run_start of the epoch's loop: the iterators of every later epoch, before the first batch
"""

from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, SequentialSampler

from ..compat.of_lightning import (
    batches_read_ahead,
    combined_alike,
    forget_states_of_loaders,
    loaders_of,
    validates_now,
)
from ..errors import UserError
from .loader import RankLoader, draw_base_seed, generators_of, has_indices, is_stream
from .proxy import Proxy, ResumedSampler
from .random import (
    RankStream,
    State,
    from_tensors,
    get_state,
    kept_state,
    set_state,
    to_tensors,
)
from .seeded import set_epoch
from .share import SharedLoader
from .stream import is_stateful

WAY_OUT = "or go on from a checkpoint that was written at an epoch's end"


class Place:
    """Where in its epoch a checkpoint was written.

    Args:
        checkpoint: Lightning's dictionary, whose count of epochs is put right.

    Attributes:
        is_inside: Whether the epoch had begun and was not over.
        batches: Batches of the epoch that were trained on.
        epoch: The one that goes on, or begins.
        of_loaders: What each training loader that can tell its position said of it.
        random: What `TrainingEpochs.state` returned; empty in a checkpoint of plain Lightning.
    """

    def __init__(self, checkpoint: dict[str, Any]) -> None:
        loop = checkpoint.get("loops", {}).get("fit_loop", {})
        progress = loop.get("epoch_loop.batch_progress", {})
        self.batches: int = progress.get("current", {}).get("processed", 0)
        self.is_inside: bool = self.batches > 0 and not progress["is_last_batch"]
        begun = loop.get("epoch_progress", {}).get("current", {}).get("ready", 0)
        self.epoch: int = begun - self.is_inside
        if self.is_inside:
            # Lightning counts an epoch that `max_steps` cut short as done, too.
            for counts in loop["epoch_progress"].values():
                counts["processed"] = counts["completed"] = counts["ready"] - 1
        states = list(loop.get("state_dict", {}).get("combined_loader") or [])
        # Loaders over indices said where they stood before release 0.3.
        self.of_loaders = [state for state in states if state and "consumed" not in state]
        self.random: dict[str, Any] = checkpoint.get("random") or {}


class TrainingEpochs:
    """One fit's epochs. The strategy makes one for each fit, and ends it after.

    Args:
        trainer: Whose fit it is.
        stream: What this rank draws.
        synchronize: Lets all ranks draw on as the first one does; called before an epoch's order
            is drawn.

    Attributes:
        samples: Samples of the epoch that were trained on, by all ranks; None where a batch does
            not tell.
    """

    def __init__(
        self, trainer: Trainer, stream: RankStream, synchronize: Callable[[], None]
    ) -> None:
        self.trainer = trainer
        self.stream = stream
        self.synchronize = synchronize
        self.place: Place | None = None
        self.samples: int | None = 0
        self._iterator: State | None = None
        self._first: State | None = None
        self._own: dict[str, list[torch.Tensor]] = {}
        self._loop = trainer.fit_loop.epoch_loop
        self._on_run_start = partial(type(self._loop).on_run_start, self._loop)
        self._loop.on_run_start = self._epoch_starts  # type: ignore[method-assign]
        validation = self._loop.val_loop
        counted_as_run = partial(type(validation).increment_progress_to_evaluation_end, validation)

        def count_as_run() -> None:
            with kept_state():  # it was run, and its draws are in the state that is resumed
                counted_as_run()

        validation.increment_progress_to_evaluation_end = count_as_run  # type: ignore[method-assign]

    def resume_from(self, place: Place) -> None:
        """Go on where a checkpoint was written; before any training loader is asked for."""
        self.place = place
        self.stream.seed = place.random.get("seed", self.stream.seed)

    def end(self) -> None:
        """Leave Lightning's loops as they were."""
        self._loop.__dict__.pop("on_run_start", None)
        self._loop.val_loop.__dict__.pop("increment_progress_to_evaluation_end", None)

    @property
    def _loaders(self) -> list[Any]:
        combined = loaders_of(self.trainer.fit_loop)
        return [] if combined is None else combined.flattened

    def loader(self, loader: Any) -> Any:
        """Take a training loader; Lightning makes its iterator next.

        Returns:
            What stands for it until the epoch starts, where a resume goes on inside.
        """
        place = self.place
        epoch = self.trainer.current_epoch if place is None else place.epoch
        _begin([loader], epoch)
        if place is not None:
            # Lightning would load them once more, when the first batches are read.
            forget_states_of_loaders(self.trainer)
            if is_stateful(loader):
                _put(loader, place)
            elif place.is_inside:
                _reject_without_indices(loader)
            if place.is_inside:
                return Waiting(loader)
            if place.random:
                set_state(from_tensors(place.random["now"]))
                _set_generators([loader], place.random["generators"], "now")
        self._note_iterators([loader])
        return loader

    def _note_iterators(self, loaders: list[Any]) -> None:
        self._iterator = self.stream.common_state
        self._own = {"iterator": _states_of(loaders)}

    def _epoch_starts(self, data_fetcher: Any) -> None:
        """Stands for `on_run_start` of Lightning's loop, after which the first batch is read.

        In it the iterators of every epoch but the first are made.
        """
        fit_loop = self.trainer.fit_loop
        place, self.place = self.place, None
        if place is not None and place.of_loaders and place.is_inside:
            raise UserError(
                "resume: the checkpoint was written inside an epoch with more training loaders "
                f"than there are; give as many, {WAY_OUT}"
            )
        if place is not None and place.is_inside:
            self._resume(data_fetcher, place)
            self._on_run_start(data_fetcher)
            return
        self.samples = 0
        is_new = self.trainer.current_epoch > 0 and not (
            fit_loop.is_resuming or self._loop.restarting
        )
        if is_new:
            self.synchronize()
            _begin(self._loaders, self.trainer.current_epoch)
            self._note_iterators(self._loaders)
        self._on_run_start(data_fetcher)
        self._first = self.stream.common_state

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of random numbers: plain data."""
        now = to_tensors(self._after_validation())
        generators = {"now": _states_of(self._loaders), **self._own}
        state: dict[str, Any] = {"now": now, "generators": generators, "seed": self.stream.seed}
        state["loaders"] = len(self._loaders)
        if self._iterator is not None and self._first is not None:
            state["iterator"] = to_tensors(self._iterator)
            state["first"] = to_tensors(self._first)
            state["samples"] = self.samples
        return state

    def _after_validation(self) -> State:
        """Where the common stream stands, once the validation that is due was run.

        What a step saves before its validation is resumed after it. A validation draws its loaders'
        seeds of workers, whether they have any.
        """
        state = self.stream.common_state
        progress: Any = self._loop.batch_progress.current
        fetcher = batches_read_ahead(self.trainer)
        in_step = progress.processed > progress.completed
        if not in_step or fetcher is None or not validates_now(self.trainer, fetcher):
            return state
        combined = loaders_of(self._loop.val_loop)
        with kept_state():
            set_state(state)
            for loader in combined.flattened if combined is not None else []:
                if isinstance(getattr(loader, "loader", loader), DataLoader):
                    draw_base_seed(loader)
            return get_state()

    def _resume(self, data_fetcher: Any, place: Place) -> None:
        """Make the iterators of an epoch of which a part was trained on, and resume it."""
        combined = loaders_of(self.trainer.fit_loop)
        assert combined is not None
        random = place.random
        waiting = combined.flattened
        loaders = [each.loader for each in waiting]
        if random.get("loaders", len(loaders)) != len(loaders):
            raise UserError(
                "resume: the checkpoint was written inside an epoch with "
                f"{random['loaders']} training loaders, and there are {len(loaders)}; give as "
                f"many, {WAY_OUT}"
            )
        if "iterator" in random:
            self._iterator, self._first = (from_tensors(random[k]) for k in ("iterator", "first"))
            set_state(self._iterator)
            _set_generators(loaders, random["generators"], "iterator")
            self._own = {"iterator": _states_of(loaders)}
        elif any(map(_is_drawn, loaders)) and self.trainer.is_global_zero:
            print(
                "resume: the checkpoint does not say in which order the epoch's samples were "
                "drawn: they are drawn again, so some are seen twice in it"
            )
        self.samples = random.get("samples")
        walked = self._walked([each for each in loaders if not is_stateful(each)], place)
        combined.flattened = [walked.get(id(each), each) for each in loaders]
        iter(data_fetcher)
        combined.flattened = loaders
        if random:
            set_state(from_tensors(random["now"]))
            _set_generators(loaders, random["generators"], "now")

    def _walked(self, loaders: list[Any], place: Place) -> dict[int, Any]:
        """For loaders, by their ids, what begins where the checkpoint was written."""
        combined = loaders_of(self.trainer.fit_loop)
        assert combined is not None
        walks = [Walk(each, _draws_ahead(each)) for each in loaders]
        # Loaders of several lengths start again as they do in training.
        walking = combined_alike(combined, list(walks))
        iter(walking)
        if self._first is not None and place.random:
            set_state(self._first)
        # What its sampler yields tells the samples of a batch only where it is a batch sampler.
        counts = len(walks) == 1 and loaders[0].batch_sampler is not None
        wanted = place.random.get("samples") if counts else None
        number = 0
        try:
            while number < place.batches if wanted is None else walks[0].samples < wanted:
                if walks:
                    next(walking)
                number += 1
        except StopIteration:
            raise UserError(
                f"resume: the checkpoint was written inside an epoch, after {place.batches} "
                f"batches, and there are {number} now; leave the batch size and the data as they "
                f"were, {WAY_OUT}"
            ) from None
        if wanted is not None and walks[0].samples != wanted:
            raise UserError(
                "resume: the checkpoint was written inside an epoch, and no batch ends at sample "
                f"{wanted} now; leave the batch size and the data as they were, {WAY_OUT}"
            )
        return {id(walk.loader): _from(walk, place.batches) for walk in walks}


class Waiting(Proxy):
    """Stands for a loader until the epoch that it is resumed in starts; it yields nothing.

    To Lightning it is one that can tell its position, so that no warning says that it cannot.
    """

    _of = "loader"

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Its place is told by `TrainingEpochs`."""


class Walk:
    """Walks the indices of a loader's batches, and reads none of them.

    Args:
        loader: What the user wrote, or what stands for it.
        draws_ahead: Whether the first indices are drawn with the iterator.

    Attributes:
        samples: How many it has passed, since its iterator was last made.
    """

    def __init__(self, loader: Any, draws_ahead: bool) -> None:
        self.loader = loader
        self.draws_ahead = draws_ahead
        self.samples = 0

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        draw_base_seed(self.loader)
        batches = self.loader.batch_sampler
        self._left = iter(self.loader.sampler if batches is None else batches)
        self._ahead = [next(self._left)] if self.draws_ahead else []
        self.samples = 0
        return self

    def __next__(self) -> Any:
        indices = self._ahead.pop() if self._ahead else next(self._left)
        self.samples += len(indices) if hasattr(indices, "__len__") else 1
        return indices


def _from(walk: Walk, number: int) -> Any:
    """A loader whose first iterator begins where a walk has come to."""
    loader, left = walk.loader, iter(walk.__next__, None)
    if isinstance(loader, RankLoader):
        loader.resume(left, number)
        return loader
    rest: DataLoader[Any] = copy(loader)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    vars(rest).update({name: ResumedSampler(getattr(loader, name), left), "_iterator": None})
    return rest


def _draws_ahead(loader: Any) -> bool:
    """Whether the first indices are drawn when the iterator is made.

    They are for workers, and where Lightning reads ahead to know which batch is the last.
    """
    return loader.num_workers > 0 or not hasattr(loader.batch_sampler, "__len__")


def _reject_without_indices(loader: Any) -> None:
    own = loader.loader if isinstance(loader, RankLoader) else loader
    if isinstance(own, DataLoader) and has_indices(own):
        return
    is_read = isinstance(own, DataLoader) and is_stream(own)
    ways = " and read it with num_workers=0, use torchdata's StatefulDataLoader" if is_read else ""
    raise UserError(
        "resume: the checkpoint was written inside an epoch, and "
        f"{type(own.dataset if is_read else own).__name__} cannot be put where it stood; give it "
        f"state_dict and load_state_dict{ways}, {WAY_OUT}"
    )


def _put(loader: Any, place: Place) -> None:
    """Put a loader that can tell its position where the checkpoint's stood, one after the other."""
    inside = {"is_inside": place.is_inside} if isinstance(loader, SharedLoader) else {}
    try:
        if place.of_loaders:
            loader.load_state_dict(place.of_loaders.pop(0), **inside)
        elif place.is_inside:
            raise ValueError("there are more training loaders now; give as many as before")
    except (ValueError, KeyError) as error:
        raise UserError(
            f"resume: the checkpoint was written inside an epoch, and {error}, {WAY_OUT}"
        ) from None


def _begin(loaders: list[Any], epoch: int) -> None:
    for loader in loaders:
        set_epoch(loader, epoch)
        if isinstance(loader, SharedLoader):
            loader.begin(epoch)


def _is_drawn(loader: Any) -> bool:
    return type(getattr(loader, "sampler", None)) is not SequentialSampler


def _states_of(loaders: list[Any]) -> list[torch.Tensor]:
    return [generator.get_state() for loader in loaders for generator in generators_of(loader)]


def _set_generators(loaders: list[Any], states: dict[str, list[torch.Tensor]], name: str) -> None:
    generators = [generator for loader in loaders for generator in generators_of(loader)]
    for generator, state in zip(generators, states.get(name, []), strict=False):
        generator.set_state(state)
