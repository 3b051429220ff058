"""`Trainer(reload_dataloaders_every_n_epochs=...)` in a resumed fit.

It asks first for the loaders that the fit before had, as of the epoch and with the random numbers
with which that one asked, and again when that one would have.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from lightning.pytorch import Trainer

from ..compat.of_lightning import loaders_of
from ..compat.patching import replaced
from .random import State, from_tensors, get_state, kept_state, set_state, to_tensors


class Reloading:
    """Follows when the loaders of training and of validation were asked for.

    Attributes:
        begins: The epoch with which a resume begins, and the state of the generators; until then.
        is_anew: Whether it begins with new training loaders, with generators of their own.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.every: int = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        self.begins: tuple[int, State] | None = None
        self.is_anew = False
        loop = trainer.fit_loop
        self._loops: dict[str, Any] = {"train": loop, "val": loop.epoch_loop.val_loop}
        # The epoch and the generators' state of the last time, here and in the fit before.
        self._last: dict[str, tuple[int, State]] = {}
        self._before: dict[str, tuple[int, State]] = {}

    def state(self) -> dict[str, Any]:
        """When the present loaders were asked for, as plain data; empty without reloading."""
        return {name: [epoch, to_tensors(state)] for name, (epoch, state) in self._last.items()}

    def resume_from(self, state: dict[str, Any]) -> None:
        self._before = {name: (epoch, from_tensors(at)) for name, (epoch, at) in state.items()}

    @contextmanager
    def followed(self) -> Iterator[None]:
        with ExitStack() as patches:
            for name, loop in self._loops.items() if self.every else ():
                setup_data = partial(type(loop).setup_data, loop)
                ask = partial(self._ask, name, setup_data)
                patches.enter_context(replaced(loop, "setup_data", ask))
            yield

    def _ask(self, name: str, setup_data: Any) -> None:
        """Replaces `setup_data`, which asks for loaders if there are none or they are due."""
        if name == "val" and self.begins and not self.trainer.sanity_checking:
            return  # Lightning asks early, to show their number; they are asked for when needed
        progress: Any = self.trainer.fit_loop.epoch_progress.current
        loaders, keeps = loaders_of(self._loops[name]), False
        asks = here = self.trainer.current_epoch, get_state()
        if (before := self._before.pop(name, None)) is not None:
            here = self.begins or here
            is_due = here[0] - before[0] >= self.every
            asks = here if is_due else before
            self.is_anew |= is_due and name == "train"
            # The validation's were asked for before the training came here.
            keeps = name == "val" and not is_due
        with kept_state() if keeps else nullcontext(), replaced(progress, "completed", asks[0]):
            set_state(asks[1])
            setup_data()
        if loaders_of(self._loops[name]) is not loaders:
            self._last[name] = asks
