"""Makes a checkpoint of any step resume exactly, also inside an epoch.

`Position.rng` has three states of the generators: *now*; *iterator*, before the iterators of the
epoch's loaders were made; and *first*, before the first batch was read. A resume inside an epoch
redraws the order of samples from the latter two, passes the batches that have been trained on by
iterating the samplers only, and continues from *now*. So it sees the remaining samples under any
strategy and world size, whatever sampler the loader has. What has no sampler and cannot restore its
position is read again, and its batches are dropped. The hooks used:

    setup_data: process_dataloader for each loader, then their iterators (in the first epoch)
    on_train_start of the strategy: a resume has its random numbers, and what hooks had frozen
    on_run_start of the epoch loop: the iterators of every later epoch, before its first batch
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.utils.data import DataLoader, SequentialSampler

from ..compat.of_lightning import (
    callbacks_of,
    check_by_one_clock,
    ends_with_its_epoch,
    forget_states_of_loaders,
    is_epoch_at_its_end,
    is_in_step,
    is_validation_over,
    loaders_of,
    monitored,
    resume_plateaus,
    validation_is_due,
)
from ..compat.of_results import the_rest_logged
from ..compat.patches import replaced
from ..errors import UserError
from .epoch_sums import epoch_sums, freeze_alike, frozen_parts, restore_sums
from .loader import generators_of
from .position import BATCHES, KEY, Position, counted, position_in, reached
from .random import RankStream, State, from_tensors, set_state, to_tensors
from .replay import WAY_OUT, StartedLoader, replay_trained
from .seeded import set_epoch
from .share import SharedLoader
from .stream import StreamLoader, is_stateful


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
        self.samples: int | None = 0
        # Of the checkpoint that is resumed, until its epoch starts.
        self._resumed: Position | None = None
        self._entries: dict[str, Any] = {}
        # The epoch whose iterators were made, and the states before, and before its first batch.
        self._epoch = -1
        self._iterator: State | None = None
        self._first: State | None = None
        self._generators: dict[int, list[torch.Tensor]] = {}
        # Loaders whose workers have drawn their seed in the fit before.
        self._seeded: list[Any] = []
        # The state before the validation behind the last batch, and whether a stop alone caused it.
        self._validation: tuple[State, bool] | None = None
        # What is done once the batch is over, and whether it is being done.
        self._after_batch: list[Callable[[], None]] = []
        self._is_batch_over = False
        # What a checkpoint has of an epoch that was cut short.
        self._cut_short: dict[str, Any] | None = None
        self._loop = trainer.fit_loop.epoch_loop
        self._on_run_start = partial(type(self._loop).on_run_start, self._loop)
        self._on_advance_end = partial(type(trainer.fit_loop).on_advance_end, trainer.fit_loop)
        self._patches = ExitStack()
        for loop, name, method in (
            (self._loop, "on_run_start", self._epoch_starts),
            (self._loop, "_should_check_val_fx", self._checks),
            (trainer.fit_loop, "on_advance_end", self._epoch_ends),
        ):
            self._patches.enter_context(replaced(loop, name, method))

    def resume_from(self, checkpoint: dict[str, Any]) -> None:
        """Resume where a checkpoint was written; called before Lightning sets up the loaders."""
        self._resumed, self._entries = position_in(checkpoint)
        loop = checkpoint.get("loops", {}).get("fit_loop", {})
        states = loop.get("state_dict", {}).get("combined_loader") or []
        self._of_loaders = [state for state in states if state]
        self._is_inside = self._resumed.batches > 0 and not loop[BATCHES]["is_last_batch"]
        self._patches.enter_context(ends_with_its_epoch(self.trainer))
        self.stream.seed = self._resumed.rng.get("seed", self.stream.seed)
        every: int = self.trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        if every:
            self._say(
                f"trainer.reload_dataloaders_every_n_epochs={every}: the loaders are made now, and "
                "every so many epochs from here; what is drawn when they are made may differ from "
                "one run"
            )

    def train_starts(self) -> None:
        """Restore what the hooks of an epoch begin with; the last of all hooks that start a fit."""
        if self._resumed is None:
            return
        if "now" in self._resumed.rng:
            _set(self._resumed.rng["now"], _made(self._loaders))
        if frozen := self._entries.get("frozen"):
            self._say(freeze_alike(self.trainer.lightning_module, frozen))
        # Lightning calls no `on_train_epoch_start` for an epoch that is resumed.
        for schedule in callbacks_of(self.trainer, GradientAccumulationScheduler):
            schedule.on_train_epoch_start(self.trainer)

    def after_batch(self, action: Callable[[], None]) -> None:
        """Do something once the batch under way is over; see `CallbackAPI.after_batch`."""
        self._after_batch.append(action)

    def end(self) -> None:
        """Restore Lightning's loops."""
        self._patches.close()

    def _say(self, line: str | None) -> None:
        if line and self.trainer.is_global_zero:
            print(f"resume: {line}")

    @property
    def _loaders(self) -> list[Any]:
        combined = loaders_of(self.trainer.fit_loop)
        return [] if combined is None else combined.flattened

    def loader(self, loader: Any) -> Any:
        """Prepare a training loader, whose iterator Lightning makes next.

        Returns:
            The loader; for a resume a placeholder without a batch, until the epoch starts.
        """
        position = self._resumed
        if position is None:
            self._begin([loader], self.trainer.current_epoch)
            return loader
        # Otherwise Lightning would load them again when the first batches are read.
        forget_states_of_loaders(self.trainer)
        if is_stateful(loader):
            self._put(loader)
        return StartedLoader(loader)

    def _begin(self, loaders: list[Any], epoch: int) -> None:
        """Begin an epoch of loaders whose iterators are made next."""
        for loader in loaders:
            set_epoch(loader, epoch)
            if isinstance(loader, SharedLoader):
                loader.begin(epoch)
            self._generators[id(loader)] = _states_of([loader])
        self._epoch, self._iterator = epoch, self.stream.common_state

    def _epoch_starts(self, data_fetcher: Any) -> None:
        """Replaces `on_run_start` of Lightning's epoch loop.

        There Lightning makes the iterators of every epoch but the first, and of one that is
        resumed. It then reads the first batch.
        """
        position, self._resumed, self._cut_short = self._resumed, None, None
        if position is not None:
            combined = loaders_of(self.trainer.fit_loop)
            assert combined is not None
            combined.flattened = _made(self._loaders)
            self._take_up(position)
            if position.batches:
                if self._is_inside:
                    self._go_on(position, data_fetcher)
                self._on_run_start(data_fetcher)
                return
        self.samples = 0
        epoch = self.trainer.current_epoch
        is_resumed = self.trainer.fit_loop.is_resuming or self._loop.restarting
        if position is not None or (epoch > 0 and not is_resumed):
            self.synchronize()
            self._begin(self._loaders, epoch)
        with _without_a_seed(self._seeded):
            if position is not None:
                iter(data_fetcher)
            self._on_run_start(data_fetcher)
        self._seeded, self._first = [], self.stream.common_state

    def _take_up(self, position: Position) -> None:
        """Take up what the epoch has logged, and what its workers have drawn."""
        if "monitored" in self._entries:
            resume_plateaus(self.trainer, **self._entries["monitored"])
        if "so_far" in self._entries and position.batches:
            self._say(restore_sums(self.trainer, self._entries["so_far"]))
        if position.epoch or position.batches:
            lasting = [each for each in self._loaders if getattr(each, "persistent_workers", False)]
            self._seeded = [getattr(each, "loader", each) for each in lasting]
        self._entries = {}

    def _go_on(self, position: Position, data_fetcher: Any) -> None:
        """Continue with the batches of an epoch that are left."""
        combined, loaders, rng = loaders_of(self.trainer.fit_loop), self._loaders, position.rng
        assert combined is not None
        accumulated = self.trainer.accumulate_grad_batches
        if in_window := position.batches % accumulated:
            self._say(
                f"the checkpoint was written after {in_window} of {accumulated} accumulated "
                "batches, without their gradients: the next optimizer step has those of the "
                "remaining batches alone"
            )
        if (self._of_loaders and not rng) or rng.get("loaders", len(loaders)) != len(loaders):
            raise UserError(
                "resume: the checkpoint was written inside an epoch with "
                f"{rng.get('loaders', 'more')} training loaders, and there are {len(loaders)}; "
                f"give as many, {WAY_OUT}"
            )
        if "iterator" in rng:
            _set(rng["iterator"], loaders)
        elif any(map(_is_drawn, loaders)):
            self._say(
                "the checkpoint does not hold the order of the epoch's samples; it is drawn again, "
                "so this epoch may train on some samples twice"
            )
        self._begin(loaders, position.epoch)
        self._first = from_tensors(rng["first"]) if "first" in rng else None
        self.samples = position.samples
        combined.flattened = replay_trained(combined, position, self._first, self._say)
        iter(data_fetcher)
        combined.flattened = loaders
        if "now" in rng:
            _set(rng["now"], loaders)

    def _put(self, loader: Any) -> None:
        """Restore a loader's position from the next of the checkpoint's states."""
        if isinstance(loader, StreamLoader) and not self._of_loaders:
            return
        inside = {"is_inside": self._is_inside} if isinstance(loader, SharedLoader) else {}
        try:
            if self._of_loaders:
                loader.load_state_dict(self._of_loaders.pop(0), **inside)
            elif self._is_inside:
                raise ValueError("there are more training loaders now; give as many as before")
        except (ValueError, KeyError) as error:
            raise UserError(
                f"resume: the checkpoint was written inside an epoch, and {error}, {WAY_OUT}"
            ) from None

    def _checks(self, data_fetcher: Any) -> bool:
        """Replaces `_should_check_val_fx` of Lightning's epoch loop, which asks after each batch.

        A validation that only a stop causes (`max_time`) is none of a run that was not stopped,
        whose next epoch has another order if it draws.
        """
        trainer, self._validation = self.trainer, None
        self._is_batch_over = True
        while self._after_batch:
            self._after_batch.pop(0)()
        self._is_batch_over = False
        if is_due := check_by_one_clock(trainer, data_fetcher):
            for_stop = trainer.should_stop and not validation_is_due(trainer)
            self._validation = self.stream.common_state, for_stop
        return is_due

    def _epoch_ends(self) -> None:
        """Replaces `on_advance_end` of Lightning's fit loop."""
        if not is_epoch_at_its_end(self.trainer):
            self._cut_short = self.state()
        with the_rest_logged(self.trainer):
            self._on_advance_end()

    def state(self) -> dict[str, Any]:
        """The state of the fit loop, and what a resume needs beside it, as plain data."""
        trainer = self.trainer
        if self._cut_short is not None:
            return self._cut_short
        if self._resumed is not None:  # nothing has been trained since
            entries = {"position": vars(self._resumed), **self._entries}
            return {"fit_loop": trainer.fit_loop.state_dict(), KEY: entries}
        in_step = self._is_batch_over or is_in_step(trainer)
        loop, loaders = counted(trainer, in_step), self._loaders
        epoch, batches = reached(loop)
        before = [state for each in loaders for state in self._generators.get(id(each), [])]
        now, generators = self.stream.common_state, _states_of(loaders)
        if not batches and self._iterator is not None and self._epoch == epoch:
            now, generators = self._iterator, before
        elif self._validation is not None and not in_step:
            state, for_stop = self._validation
            if for_stop or (trainer.validating and not is_validation_over(trainer)):
                now = state
        rng: dict[str, Any] = {"seed": self.stream.seed, "loaders": len(loaders)}
        rng["now"] = {**to_tensors(now), "generators": generators}
        entries = {
            "frozen": frozen_parts(trainer.lightning_module),
            "monitored": monitored(trainer),
        }
        if batches:
            entries["so_far"] = epoch_sums(trainer)
            if self._iterator is not None and self._first is not None:
                rng["iterator"] = {**to_tensors(self._iterator), "generators": before}
                rng["first"] = {**to_tensors(self._first), "generators": []}
        position = Position(epoch, batches, self.samples if batches else 0, rng)
        return {"fit_loop": loop, KEY: {"position": vars(position), **entries}}


@contextmanager
def _without_a_seed(loaders: list[DataLoader[Any]]) -> Iterator[None]:
    """Let loaders start workers, and draw no seed for them that their order would follow from.

    Without interruption, workers that persist have one seed, which is drawn for the first epoch.
    """
    before = [(each, each.generator) for each in loaders]
    for each in loaders:
        each.generator = torch.Generator().manual_seed(torch.initial_seed())
    yield
    for each, generator in before:
        each.generator = generator


def _made(loaders: list[Any]) -> list[Any]:
    """The loaders behind placeholders."""
    return [each.loader if isinstance(each, StartedLoader) else each for each in loaders]


def _set(states: dict[str, Any], loaders: list[Any]) -> None:
    """Restore the states of the process's generators, and of those that loaders have."""
    set_state(from_tensors(states))
    generators = [generator for loader in loaders for generator in generators_of(loader)]
    for generator, state in zip(generators, states["generators"], strict=False):
        generator.set_state(state)


def _is_drawn(loader: Any) -> bool:
    return type(getattr(loader, "sampler", None)) is not SequentialSampler


def _states_of(loaders: list[Any]) -> list[torch.Tensor]:
    return [generator.get_state() for loader in loaders for generator in generators_of(loader)]
