"""Makes a checkpoint of any step resume exactly, also inside an epoch.

A checkpoint holds three states of the generators in ``random``: *now*; *iterator*, before the
iterators of the epoch's loaders were made; and *first*, before the first batch was read. A resume
inside an epoch redraws the order of samples from the latter two, skips the batches that have been
trained on by iterating the samplers only, and continues from *now*. If a validation was due, which
Lightning would leave out, it comes first. So a resume sees the remaining samples under any strategy
and world size, whatever sampler the loader has. What has no sampler and cannot restore its position
is read again, and its batches are dropped. The hooks used:

    setup_data: process_dataloader for each loader, then their iterators (in the first epoch)
    on_train_start of the strategy: what hooks had frozen
    on_run_start of the epoch loop: the iterators of every later epoch, before its first batch
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch.utils.data import DataLoader, SequentialSampler

from ..compat.of_lightning import (
    callbacks_of,
    callbacks_with_metric,
    combined_alike,
    ends_with_its_epoch,
    forget_states_of_loaders,
    is_epoch_at_its_end,
    is_in_epoch,
    loaders_of,
    monitored,
    resume_plateaus,
    set_sampler_epoch,
    validate_first,
    validated_by_one_clock,
    validates_now,
)
from ..compat.of_results import log_the_rest
from ..compat.patching import replaced
from ..errors import UserError
from .frozen import freeze_alike, frozen_parts
from .loader import RankLoader, generators_of, has_indices
from .random import (
    RankStream,
    State,
    from_tensors,
    kept_state,
    set_state,
    to_tensors,
)
from .reload import Reloading
from .seeded import set_epoch
from .share import SharedLoader
from .so_far import so_far, take_up
from .stream import StreamLoader, is_stateful
from .walk import Begun, Reading, Walk, draws_ahead

WAY_OUT = "or resume from a checkpoint that was written at the end of an epoch"


class Place:
    """The position in an epoch at which a checkpoint was written.

    Args:
        checkpoint: Lightning's dictionary; its count of epochs is corrected in place.

    Attributes:
        is_inside: Whether batches of the epoch are left.
        is_ending: Whether none is left, and the epoch had not come to its end.
        validates: Whether a validation was due that had not begun.
        batches: Batches of the epoch that had been trained on.
        epoch: The epoch that continues, or begins.
        of_loaders: The states of the training loaders that can save their position.
        random: The result of `TrainingEpochs.state`; empty in a checkpoint of plain Lightning.
    """

    def __init__(self, checkpoint: dict[str, Any]) -> None:
        self.random: dict[str, Any] = checkpoint.get("random") or {}
        loop = checkpoint.get("loops", {}).get("fit_loop", {})
        progress = loop.get("epoch_loop.batch_progress", {})
        batch = progress.get("current", {"processed": 0, "completed": 0})
        epoch = loop.get("epoch_progress", {}).get("current", {"ready": 0, "processed": 0})
        self.batches: int = batch["processed"]
        self.is_inside: bool = self.batches > 0 and not progress["is_last_batch"]
        self.epoch: int = epoch["ready"] - self.is_inside
        in_step = self.batches > batch["completed"]
        self.validates: bool = in_step and self.random.get("validates", False)
        if in_step and not self.is_inside and not self.validates:
            # Otherwise Lightning would begin the next epoch without its hooks.
            loop["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
            for counts in loop["epoch_progress"].values():
                counts["processed"] = counts["completed"] = counts["ready"]
        if in_step and (self.validates or not self.is_inside):
            for kind in ("total", "current"):
                progress[kind]["completed"] = progress[kind]["processed"]
        is_over = self.batches > 0 and not self.is_inside
        self.is_ending: bool = is_over and epoch["processed"] < epoch["ready"]
        if self.is_inside:
            # Lightning also counts an epoch as completed that `max_steps` has ended early.
            for counts in loop["epoch_progress"].values():
                counts["processed"] = counts["completed"] = counts["ready"] - 1
        states = list(loop.get("state_dict", {}).get("combined_loader") or [])
        # Before release 0.3, loaders over indices saved a position, with the key "consumed".
        self.of_loaders = [state for state in states if state and "consumed" not in state]


class TrainingEpochs:
    """Follows the epochs of one fit.

    Args:
        synchronize: Copies the first rank's generator states to all ranks; called before the order
            of an epoch is drawn.

    Attributes:
        samples: Samples of the epoch that all ranks have trained on; None if a batch does not tell.
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
        # Loaders whose next iterator draws the seed of its workers apart, and their generators.
        self._seeded_apart: list[tuple[Any, torch.Generator | None]] = []
        # Loaders of which a copy, with workers of its own, ends the epoch that is resumed.
        self._without_workers: list[Any] = []
        self._loop = trainer.fit_loop.epoch_loop
        self._on_run_start = partial(type(self._loop).on_run_start, self._loop)
        self._on_advance_end = partial(type(trainer.fit_loop).on_advance_end, trainer.fit_loop)
        self._only_validates = False
        # What an epoch has logged that ended before its last batch.
        self._cut_short: list[dict[str, Any]] | None = None
        self._reloading = Reloading(trainer)
        validation = self._loop.val_loop
        counted = partial(type(validation).increment_progress_to_evaluation_end, validation)
        # The restored state already includes what the validation drew.
        counted_only = kept_state()(counted)
        self._patches = ExitStack()
        for loop, name, method in (
            (self._loop, "on_run_start", self._epoch_starts),
            (trainer.fit_loop, "on_advance_end", self._epoch_ends),
            (validation, "increment_progress_to_evaluation_end", counted_only),
        ):
            self._patches.enter_context(replaced(loop, name, method))
        self._patches.enter_context(validated_by_one_clock(trainer))
        self._patches.enter_context(self._reloading.followed())

    def resume_from(self, place: Place) -> None:
        """Resume where a checkpoint was written; called before Lightning sets up the loaders."""
        self.place = place
        self._patches.enter_context(ends_with_its_epoch(self.trainer))
        self.stream.seed = place.random.get("seed", self.stream.seed)
        if place.random:
            now = from_tensors(place.random["now"])
            self._reloading.begins = place.epoch - place.is_ending, now
            self._reloading.resume_from(place.random.get("reloading", {}))

    def train_starts(self) -> None:
        """Freeze what was frozen when the checkpoint was written."""
        frozen = self.place and self.place.random.get("frozen")
        line = freeze_alike(self.trainer.lightning_module, frozen) if frozen else None
        if line and self.trainer.is_global_zero:
            print(f"resume: {line}")

    def end(self) -> None:
        """Restore Lightning's loops."""
        self._patches.close()

    @property
    def _loaders(self) -> list[Any]:
        combined = loaders_of(self.trainer.fit_loop)
        return [] if combined is None else combined.flattened

    def loader(self, loader: Any) -> Any:
        """Prepare a training loader, whose iterator Lightning makes next.

        Returns:
            The loader; or, for a resume inside an epoch, a placeholder until the epoch starts.
        """
        place = self.place
        epoch = self.trainer.current_epoch if place is None else place.epoch
        _begin([loader], epoch)
        if place is not None:
            # Otherwise Lightning would load them again when the first batches are read.
            forget_states_of_loaders(self.trainer)
            if is_stateful(loader):
                _put(loader, place)
            set_sampler_epoch(loader, epoch)
            if place.random and not self._reloading.is_anew:
                set_state(from_tensors(place.random["now"]))
                _set_generators([loader], place.random["generators"], "now")
            if place.is_inside or place.is_ending:
                return Begun(loader)
        self._note_iterators([loader])
        if place is not None:
            self._seed_apart(loader, place.epoch)
        return loader

    def _reuses_workers(self, loader: Any, epoch: int) -> bool:
        """Whether, without interruption, an epoch has the workers of the one before.

        A loader draws a seed for new workers only, and then the order of the samples.
        """
        trainer: Any = self.trainer
        every = trainer.reload_dataloaders_every_n_epochs
        is_new = epoch % every == 0 if every else epoch == 0
        return bool(getattr(loader, "persistent_workers", False)) and not is_new

    def _seed_apart(self, loader: Any, epoch: int) -> None:
        """Let a loader without workers draw no seed for them that the order would follow from."""
        if self._reuses_workers(loader, epoch):
            own = getattr(loader, "loader", loader)
            self._seeded_apart.append((own, own.generator))
            own.generator = torch.Generator().manual_seed(torch.initial_seed())

    def _note_iterators(self, loaders: list[Any]) -> None:
        self._iterator = self.stream.common_state
        self._own = {"iterator": _states_of(loaders)}

    def _epoch_starts(self, data_fetcher: Any) -> None:
        """Replaces `on_run_start` of Lightning's epoch loop.

        There Lightning makes the iterators of every epoch but the first. It then reads the first
        batch.
        """
        place, self.place = self.place, None
        self._cut_short, self._reloading.begins = None, None
        is_anew, self._reloading.is_anew = self._reloading.is_anew, False
        if place is not None:
            self._take_up(place, data_fetcher)
            if place.is_inside or place.is_ending:
                self._on_run_start(data_fetcher)
                return
        self.samples = 0
        is_resumed = self.trainer.fit_loop.is_resuming or self._loop.restarting
        if is_anew or (self.trainer.current_epoch > 0 and not is_resumed):
            self.synchronize()
            _begin(self._loaders, self.trainer.current_epoch)
            self._note_iterators(self._loaders)
            for loader in self._without_workers:
                self._seed_apart(loader, self.trainer.current_epoch)
            self._without_workers = []
        if is_anew and is_resumed:
            iter(data_fetcher)  # Lightning would leave it out, as if this epoch had begun before
        self._on_run_start(data_fetcher)
        while self._seeded_apart:
            own, generator = self._seeded_apart.pop()
            own.generator = generator
        self._first = self.stream.common_state

    def _take_up(self, place: Place, data_fetcher: Any) -> None:
        """Resume what is left of an epoch: batches, a validation, or its end alone."""
        if "monitored" in place.random:
            resume_plateaus(self.trainer, **place.random["monitored"])
        if place.of_loaders and place.is_inside and not place.random:
            raise UserError(
                "resume: the checkpoint was written inside an epoch with more training loaders "
                f"than there are; give as many, {WAY_OUT}"
            )
        if "so_far" in place.random and (place.is_inside or place.is_ending):
            line = take_up(self.trainer, place.random["so_far"])
            if line and self.trainer.is_global_zero:
                print(f"resume: {line}")
        if place.validates:
            validate_first(self.trainer)
        if place.is_inside:
            self._resume(data_fetcher, place)
        elif place.is_ending:
            combined = loaders_of(self.trainer.fit_loop)
            assert combined is not None
            combined.flattened = self._without_workers = [each.loader for each in self._loaders]
            self._only_validates = place.validates

    def state(self) -> dict[str, Any]:
        """The random state for a checkpoint, as plain data."""
        now = to_tensors(self.stream.common_state)
        generators = {"now": _states_of(self._loaders), **self._own}
        state: dict[str, Any] = {"now": now, "generators": generators, "seed": self.stream.seed}
        state["loaders"] = len(self._loaders)
        state["monitored"] = monitored(self.trainer)
        state["validates"] = validates_now(self.trainer)
        state["frozen"] = frozen_parts(self.trainer.lightning_module)
        state["reloading"] = self._reloading.state()
        if is_in_epoch(self.trainer):
            state["so_far"] = so_far(self.trainer)
        elif self._cut_short is not None:
            state["so_far"] = self._cut_short
        if self._iterator is not None and self._first is not None:
            state["iterator"] = to_tensors(self._iterator)
            state["first"] = to_tensors(self._first)
            state["samples"] = self.samples
        return state

    def _epoch_ends(self) -> None:
        """Replaces `on_advance_end` of Lightning's fit loop.

        In an epoch of which only the validation was left, other hooks would find nothing that this
        process has trained.
        """
        trainer, only_validates = self.trainer, self._only_validates
        log_the_rest(trainer)
        if not is_epoch_at_its_end(trainer):
            self._cut_short = so_far(trainer)
        self._only_validates = False
        with ExitStack() as hooks:
            if only_validates:
                able = callbacks_with_metric(trainer)
                for each in (trainer.lightning_module, *callbacks_of(trainer, Callback)):
                    if each not in able:
                        hooks.enter_context(replaced(each, "on_train_epoch_end", None))
            self._on_advance_end()

    def _resume(self, data_fetcher: Any, place: Place) -> None:
        combined = loaders_of(self.trainer.fit_loop)
        assert combined is not None
        random = place.random
        in_window = place.batches % self.trainer.accumulate_grad_batches
        if in_window and self.trainer.is_global_zero:
            print(
                f"resume: the checkpoint was written after {in_window} of "
                f"{self.trainer.accumulate_grad_batches} accumulated batches, without their "
                "gradients: the next optimizer step has those of the remaining batches alone"
            )
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
                "resume: the checkpoint does not hold the order of the epoch's samples; it is "
                "drawn again, so this epoch may train on some samples twice"
            )
        self.samples = random.get("samples")
        others = [
            each
            for each in loaders
            if not (each.is_put if isinstance(each, StreamLoader) else is_stateful(each))
        ]
        walked = self._walked(others, place)
        combined.flattened = [walked.get(id(each), each) for each in loaders]
        iter(data_fetcher)
        combined.flattened = loaders
        self._without_workers = [each for each in loaders if walked.get(id(each), each) is not each]
        if random:
            set_state(from_tensors(random["now"]))
            _set_generators(loaders, random["generators"], "now")

    def _walked(self, loaders: list[Any], place: Place) -> dict[int, Any]:
        """Loaders that start where the checkpoint was written, by the ids of the given loaders."""
        combined = loaders_of(self.trainer.fit_loop)
        assert combined is not None
        walks = [self._walk(each, place) for each in loaders]
        # Shorter loaders start again beside longer ones, as in training.
        walking = combined_alike(combined, list(walks))
        iter(walking)
        if self._first is not None and place.random:
            set_state(self._first)
        # Samples can be counted only if the loader has a batch sampler.
        counts = len(walks) == 1 and walks[0].counts
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
        return {id(walk.loader): walk.rest(place.batches) for walk in walks}

    def _walk(self, loader: Any, place: Place) -> Walk | Reading:
        own = loader.loader if isinstance(loader, RankLoader) else loader
        if isinstance(own, DataLoader) and has_indices(own):
            draws_seed = not self._reuses_workers(loader, place.epoch)
            return Walk(loader, draws_ahead(loader), draws_seed)
        if self.trainer.is_global_zero:
            is_read = isinstance(loader, DataLoader | StreamLoader)
            print(
                f"resume: {type(loader.dataset if is_read else loader).__name__} cannot restore "
                f"its position; {place.batches} batches are read again and dropped"
            )
        return Reading(loader)


def _put(loader: Any, place: Place) -> None:
    """Restore a loader's position from the next of the checkpoint's states."""
    if isinstance(loader, StreamLoader) and not place.of_loaders:
        return
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
