"""Where training stands, and each of its loaders, as a checkpoint tells it.

Lightning counts a batch after the hooks of its end, and an epoch that is cut short as a whole one;
checkpoints are often asked for before. So a checkpoint has the counters as they are once Lightning
has counted, and a resume reads them as they are.

A pass is one iteration over a loader; a shorter loader makes several of them beside a longer one.
The order of a pass follows from two states of the generators: before its iterator was made, and
before its first batch was read, as hooks may draw between the two. A resume restores them, makes
the iterator again, and passes what has been trained on: indices of batches, or batches that are
read again and dropped where a loader has no indices. So it sees the rest under any strategy and
world size, whatever sampler the loader has, and whatever other loaders and steps have drawn.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import Trainer

from ..compat.of_lightning import accumulates, is_validation_over, validation_is_due
from ..errors import UserError
from .random import States

KEY = "resume"  # of a checkpoint
WAY_OUT = "or resume from a checkpoint that was written at the end of an epoch"
END = object()
BEGINNING: dict[str, Any] = {"start": 0, "batches": 0, "samples": None, "states": []}
BATCHES, VALIDATION = "epoch_loop.batch_progress", "epoch_loop.val_loop.batch_progress"


@dataclass(frozen=True)
class Position:
    """Where an epoch continues.

    Attributes:
        epoch: The epoch that continues, or begins.
        batches: Its batches that have been trained on; 0 if it begins.
        rng: The generators' states, as plain data: see `resume`. Empty for plain Lightning's files.
        loaders: Where each loader of training stands: see `Passes`. Empty for these files, too.
    """

    epoch: int
    batches: int
    rng: dict[str, Any]
    loaders: list[dict[str, Any] | None] = field(default_factory=list)


def reached(loop: Mapping[str, Any]) -> tuple[int, int]:
    """The epoch that continues or begins, and its batches so far, in a state of the fit loop."""
    epoch, batch = loop["epoch_progress"]["current"], loop[BATCHES]["current"]["processed"]
    is_cut_short = batch > 0 and not loop[BATCHES]["is_last_batch"]
    if epoch["processed"] == epoch["ready"] and not is_cut_short:
        return epoch["ready"], 0
    has_begun = epoch["started"] == epoch["ready"]
    return epoch["ready"] - 1, batch if has_begun else 0


def counted(trainer: Trainer, in_step: bool) -> dict[str, Any]:
    """The state of the fit loop, once Lightning has counted what it has trained on.

    Args:
        trainer: The trainer.
        in_step: Whether a batch is at its end, and what follows on it has not begun.
    """
    loop = trainer.fit_loop.state_dict()
    epoch, batches = reached(loop)
    if epoch == loop["epoch_progress"]["current"]["ready"]:
        return loop
    if not batches:
        _begin_again(loop)
        return loop
    is_due = validation_is_due(trainer)
    validates = in_step or (trainer.validating and not is_validation_over(trainer))
    steps = loop["epoch_loop.state_dict"]["_batches_that_stepped"]
    if not accumulates(trainer):
        # Lightning counts a step of the logs behind the validation, also one that a resume passes.
        steps += (in_step or trainer.validating) - is_due
    _count(loop, steps, is_due and validates)
    return loop


def _begin_again(loop: dict[str, Any]) -> None:
    """Let an epoch without a batch begin, with its hooks."""
    for counts in loop["epoch_progress"].values():
        counts["ready"] = counts["started"] = counts["processed"]


def _count(loop: dict[str, Any], steps: int, validates: bool) -> None:
    """Count the batches of an unfinished epoch, and whether a validation comes first."""
    for counts in (loop[BATCHES]["total"], loop[BATCHES]["current"]):
        counts["ready"] = counts["started"] = counts["completed"] = counts["processed"]
    for counts in loop["epoch_progress"].values():
        counts["processed"] = counts["completed"] = counts["ready"] - 1
    loop["epoch_loop.state_dict"]["_batches_that_stepped"] = steps
    for name, counts in loop[VALIDATION].items():
        if name == "is_last_batch":
            continue
        done = 0 if name == "current" and validates else counts["completed"]
        # One batch that was started, and not ended, is for Lightning a validation to be run.
        started = done + (validates and name == "total")
        counts |= {"ready": started, "started": started, "processed": done, "completed": done}


def position_in(checkpoint: dict[str, Any]) -> tuple[Position, dict[str, Any]]:
    """Where a checkpoint was written, and what else of `TrainingEpochs` it has.

    A file of plain Lightning is counted here.
    """
    if KEY in checkpoint:
        saved = dict(checkpoint[KEY])
        return Position(**saved.pop("position")), saved
    loop = checkpoint.get("loops", {}).get("fit_loop", {})
    if BATCHES not in loop or "epoch_progress" not in loop:
        return Position(0, 0, {}, []), {}
    epoch, batches = reached(loop)
    if batches:
        _count_plain(loop)
    elif epoch < loop["epoch_progress"]["current"]["ready"]:
        _begin_again(loop)
    return Position(*reached(loop), {}, []), {}


def _count_plain(loop: dict[str, Any]) -> None:
    """Count what plain Lightning wrote in a step, or after an epoch that was cut short."""
    batch, epoch = loop[BATCHES]["current"], loop["epoch_progress"]["current"]
    steps = loop["epoch_loop.state_dict"]["_batches_that_stepped"]
    if epoch["processed"] == epoch["ready"]:
        _count(loop, steps, False)
    elif batch["processed"] > batch["completed"] and loop[BATCHES]["is_last_batch"]:
        # Otherwise Lightning would begin the next epoch without its hooks.
        _count(loop, steps + 1, False)
        for counts in loop["epoch_progress"].values():
            counts["processed"] = counts["completed"] = counts["ready"]


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators of a loader and its samplers, from which the order may be drawn."""
    batches = getattr(loader, "batch_sampler", None)
    holders = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    sources = [getattr(holder, "generator", None) for holder in holders]
    return list({id(each): each for each in sources if isinstance(each, torch.Generator)}.values())


class Passes:
    """The passes over one loader in an epoch. Batches are numbered from 0 in the epoch.

    Attributes:
        next: The number of the first batch of the next pass.
        count: Batches that have been trained on.
        resumed: The position from which the next pass goes on.
    """

    def __init__(self, loader: Any) -> None:
        self._generators = generators_of(loader)
        self.begin()

    def begin(self) -> None:
        """Begin an epoch."""
        self.next, self.count = 0, 0
        self._samples: int | None = 0
        # The two states of each pass of which a batch may be left, by the number of its first.
        self._begun: dict[int, list[States]] = {}
        self.resumed: dict[str, Any] | None = None

    def over(
        self, source: Any, count: Callable[[Any], int] | None = None, keeps: bool = False
    ) -> Iterator[Any]:
        """Iterate over a source of batches, or of indices; on a resume over what is left of it.

        Args:
            source: What to make an iterator of.
            count: The samples in what it yields, if that is known.
            keeps: Whether a resume leaves the generators as they are. If not, what is read ahead
                follows on them: by workers, or to find out which batch is the last.
        """
        if self.resumed is not None:
            # Not before it is read: a loader with workers makes two iterators, and reads one.
            return self._left(source, count, keeps)
        states = States.of(self._generators)
        return self._from_the_first(iter(source), self.next, states)

    def _from_the_first(self, batches: Iterator[Any], number: int, states: States) -> Iterator[Any]:
        self._begun[number] = [states, States.of(self._generators)]
        yield from batches

    def _left(self, source: Any, count: Callable[[Any], int] | None, keeps: bool) -> Iterator[Any]:
        resumed, self.resumed = self.resumed, None
        assert resumed is not None
        now = States.of(self._generators)
        before, first = self._begun.setdefault(resumed["start"], [now, now])
        before.restore(self._generators)
        batches, samples = iter(source), 0
        first.restore(self._generators)
        for number in range(resumed["batches"]):
            if (batch := next(batches, END)) is END:
                raise UserError(
                    f"resume: the checkpoint was written inside an epoch, after "
                    f"{resumed['batches']} batches, and there are {number} now; leave the batch "
                    f"size and the data as they were, {WAY_OUT}"
                )
            samples += count(batch) if count is not None else 0
        if count is not None and resumed["samples"] not in (None, samples):
            raise UserError(
                f"resume: the checkpoint was written inside an epoch, after {resumed['samples']} "
                f"samples in {resumed['batches']} batches, which have {samples} now; leave the "
                f"batch size and the data as they were, {WAY_OUT}"
            )
        if keeps:
            now.restore(self._generators)
        yield from batches

    def trained(self, number: int, samples: int) -> None:
        """Note that a batch has been trained on; again if several steps train on it."""
        if number < self.count:
            return
        begun = [start for start in self._begun if start <= number]
        for start in begun[:-1]:
            del self._begun[start]
        if number in self._begun:
            self._samples = 0
        # A resume from plain Lightning's file does not know how many there were.
        self._samples = None if self._samples is None else self._samples + samples
        self.count = number + 1

    def position(self) -> dict[str, Any] | None:
        """The pass that goes on, as plain data: where it began, and what was trained on since."""
        if not self.count or not self._begun:
            return None
        start, states = next(iter(self._begun.items()))
        batches = self.count - start
        data = [each.to_tensors() for each in states]
        return {"start": start, "batches": batches, "samples": self._samples, "states": data}

    def resume(self, position: dict[str, Any]) -> None:
        """Begin the next pass after what was trained on at a `position`."""
        self.stand_at(position)
        self.resumed = position

    def stand_at(self, position: dict[str, Any]) -> None:
        """Count from a `position` on, at which the source stands by itself."""
        self.begin()
        self._samples = position["samples"]
        self.next = self.count = position["start"] + position["batches"]
        if position["states"]:
            states = [States.from_tensors(each) for each in position["states"]]
            self._begun = {position["start"]: states}
