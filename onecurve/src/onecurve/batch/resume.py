"""Makes a checkpoint of any step resume exactly, also inside an epoch.

A checkpoint has the states of the generators as they are *now*, and where each loader stands in its
pass over the data (see `passes`). The hooks used:

    setup_data: process_dataloader for each loader, then their iterators (in the first epoch)
    on_train_start of the strategy: a resume has its random numbers, and what hooks had frozen
    on_run_start of the epoch loop: the iterators of every later epoch, before its first batch
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import SequentialSampler

from ..compat.of_lightning import (
    callbacks_of,
    check_by_one_clock,
    ends_with_its_epoch,
    is_epoch_at_its_end,
    is_in_step,
    is_validation_over,
    loaders_of,
    monitored,
    resume_plateaus,
    show_loaders,
    the_rest_logged,
    validation_is_due,
)
from ..compat.patches import replaced
from ..errors import UserError
from .epoch_sums import epoch_sums, freeze_alike, frozen_parts, restore_sums
from .position import (
    BATCHES,
    BEGINNING,
    KEY,
    WAY_OUT,
    Position,
    counted,
    generators_of,
    position_in,
    reached,
)
from .random import RankStream, State, States
from .seeded import set_epoch
from .share import Proxy, unwrapped
from .stream import StreamLoader, is_stateful


class TrainingEpochs:
    """Follows the epochs of one fit.

    Args:
        synchronize: Copies the first rank's generator states to all ranks; called before the order
            of an epoch is drawn.
    """

    def __init__(
        self, trainer: Trainer, stream: RankStream, synchronize: Callable[[], None]
    ) -> None:
        self.trainer = trainer
        self.stream = stream
        self.synchronize = synchronize
        # Of the checkpoint that is resumed, until its epoch starts.
        self._resumed: Position | None = None
        self._entries: dict[str, Any] = {}
        # The epoch whose iterators were made, and the states before.
        self._begun: tuple[int, States] | None = None
        # The state before the validation behind the last batch, and whether a stop alone caused it.
        self._validation: tuple[State, bool] | None = None
        # What is done once the batch is over, and whether it is being done.
        self._after_batch: list[Callable[[], None]] = []
        self._is_batch_over = False
        # What a checkpoint has of an epoch that was cut short.
        self._cut_short: dict[str, Any] | None = None
        self._loop = trainer.fit_loop.epoch_loop
        self._on_run_start = partial(type(self._loop).on_run_start, self._loop)
        self._setup_data = partial(type(trainer.fit_loop).setup_data, trainer.fit_loop)
        self._on_advance_end = partial(type(trainer.fit_loop).on_advance_end, trainer.fit_loop)
        self._patches = ExitStack()
        for loop, name, method in (
            (self._loop, "on_run_start", self._epoch_starts),
            (self._loop, "_should_check_val_fx", self._checks),
            (trainer.fit_loop, "setup_data", self._sets_up),
            (trainer.fit_loop, "on_advance_end", self._epoch_ends),
        ):
            self._patches.enter_context(replaced(loop, name, method))

    def resume_from(self, checkpoint: dict[str, Any]) -> None:
        """Resume where a checkpoint was written; called before Lightning sets up the loaders."""
        self._resumed, self._entries = position_in(checkpoint)
        loop = checkpoint.get("loops", {}).get("fit_loop", {})
        # Lightning would load them into placeholders, and count these.
        states = loop.get("state_dict", {}).pop("combined_loader", None) or []
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
        self._restore(self._resumed)
        if frozen := self._entries.get("frozen"):
            self._say(freeze_alike(self.trainer.lightning_module, frozen))
        task = self.trainer.lightning_module
        if self._is_inside and is_overridden("on_train_epoch_start", task):
            self._say(
                f"on_train_epoch_start of {type(task).__name__} is not called for the rest of an "
                "epoch, as under plain Lightning; what it makes, make in __init__ as well"
            )
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

    def _states(self, process: State | None = None) -> States:
        return States.of(self._generators, process or self.stream.common_state)

    def _restore(self, position: Position) -> None:
        if "now" in position.rng:
            States.from_tensors(position.rng["now"]).restore(self._generators)

    @property
    def _generators(self) -> list[torch.Generator]:
        return [each for loader in self._loaders for each in generators_of(loader)]

    def _sets_up(self) -> None:
        """Replaces `setup_data` of Lightning's fit loop."""
        self._setup_data()
        self._show()

    def _show(self) -> None:
        """Show one process the loaders that are its own; ranks see those that share batches."""
        combined = loaders_of(self.trainer.fit_loop)
        if combined is not None:
            kind = Proxy if self.trainer.world_size == 1 else Placeholder
            show_loaders(combined, [unwrapped(loader, kind) for loader in combined.flattened])

    def loader(self, loader: Any) -> Any:
        """Prepare a training loader, whose iterator Lightning makes next.

        Returns:
            The loader; for a resume a placeholder without a batch, until the epoch starts.
        """
        if self._resumed is not None:
            return Placeholder(loader)
        self._begin([loader], self.trainer.current_epoch)
        return loader

    def _begin(self, loaders: list[Any], epoch: int) -> None:
        """Begin an epoch of loaders whose iterators are made next."""
        for loader in loaders:
            set_epoch(loader, epoch)
            loader.begin(epoch)
        self._begun = epoch, self._states()

    def _epoch_starts(self, data_fetcher: Any) -> None:
        """Replaces `on_run_start` of Lightning's epoch loop.

        There Lightning makes the iterators of every epoch but the first, and of one that is
        resumed. It then reads the first batch.
        """
        position, self._resumed, self._cut_short = self._resumed, None, None
        if position is not None:
            self._take_up(position, data_fetcher)
        elif self.trainer.current_epoch > 0 and not (
            self.trainer.fit_loop.is_resuming or self._loop.restarting
        ):
            self.synchronize()
            self._begin(self._loaders, self.trainer.current_epoch)
        self._on_run_start(data_fetcher)

    def _take_up(self, position: Position, data_fetcher: Any) -> None:
        """Take up what the epoch has logged, and the batches of it that are left."""
        combined = loaders_of(self.trainer.fit_loop)
        assert combined is not None
        loaders = [placeholder.loader for placeholder in combined.flattened]
        combined.flattened = loaders
        self._show()
        if "monitored" in self._entries:
            resume_plateaus(self.trainer, **self._entries["monitored"])
        if "so_far" in self._entries and position.batches:
            self._say(restore_sums(self.trainer, self._entries["so_far"]))
        self._entries = {}
        for loader in loaders:
            # Workers that persist have drawn their seed in the fit before.
            persist = getattr(loader, "persistent_workers", False)
            loader.keeps_workers = persist and (position.epoch or position.batches) > 0
        if position.batches and not self._is_inside:
            return
        if self._is_inside:
            self._begin(loaders, position.epoch)
            self._go_on(position, loaders)
        else:
            for loader, state in zip(loaders, position.loaders, strict=False):
                if state is not None and isinstance(loader, StreamLoader):
                    loader.resume_after_epoch(state)
            self.synchronize()
            self._begin(loaders, self.trainer.current_epoch)
        for loader in loaders:
            if self._of_loaders and is_stateful(loader):
                loader.load_state_dict(self._of_loaders.pop(0))
        iter(data_fetcher)
        if self._is_inside:
            self._restore(position)

    def _go_on(self, position: Position, loaders: list[Any]) -> None:
        """Let loaders continue with the batches of an epoch that are left."""
        accumulated = self.trainer.accumulate_grad_batches
        if in_window := position.batches % accumulated:
            self._say(
                f"the checkpoint was written after {in_window} of {accumulated} accumulated "
                "batches, without their gradients: the next optimizer step has those of the "
                "remaining batches alone"
            )
        places = position.loaders
        if places and len(places) != len(loaders):
            raise UserError(
                "resume: the checkpoint was written inside an epoch with "
                f"{len(places)} training loaders, and there are {len(loaders)}; "
                f"give as many, {WAY_OUT}"
            )
        samplers = {type(getattr(loader, "sampler", None)) for loader in loaders}
        if not places and samplers - {SequentialSampler}:
            self._say(
                "the checkpoint does not hold the order of the epoch's samples; it is drawn again, "
                "so this epoch may train on some samples twice"
            )
        for loader, place in zip(loaders, places or [None] * len(loaders), strict=True):
            if not is_stateful(loader):
                batches = position.batches
                if len(loaders) > 1 and (length := sized_len(loader)):
                    batches %= length  # a shorter one has started again
                self._say(loader.resume(place or {**BEGINNING, "batches": batches}))

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
        now = self._states()
        if not batches and self._begun is not None and self._begun[0] == epoch:
            now = self._begun[1]
        elif self._validation is not None and not in_step:
            state, for_stop = self._validation
            if for_stop or (trainer.validating and not is_validation_over(trainer)):
                now = now._replace(process=state)
        entries = {
            "frozen": frozen_parts(trainer.lightning_module),
            "monitored": monitored(trainer),
        }
        if batches:
            entries["so_far"] = epoch_sums(trainer)
        rng = {"seed": self.stream.seed, "now": now.to_tensors()}
        places = [each.position() for each in loaders]
        position = Position(epoch, batches, rng, places)
        return {"fit_loop": loop, KEY: {"position": vars(position), **entries}}


class Placeholder(Proxy):
    """A loader without a batch, until the epoch to be resumed starts.

    It has `state_dict`, so that Lightning does not warn that the loader cannot be resumed.
    """

    _of = "loader"

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing: `TrainingEpochs` restores the position."""
