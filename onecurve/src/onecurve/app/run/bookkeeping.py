"""What a script's fits and tests came to, noted by a callback of every Trainer that it builds."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import DictConfig

from ...checkpoint.format import reject_other_network
from ...errors import UserError
from ...launch.context import EndedEarly
from ...optim.steps import steps_done
from ...strategies.strategy import OneCurve
from .monitor import no_validation
from .stop import EndOfTraining, end_of_training
from .trainer import task_metrics

FIT = "fit_of_script"
"""A key of checkpoints: which fit of the script saved it, from 1."""


@dataclass
class Results:
    """What a run came to so far: `onecurve.app.run.script` writes it down at the end."""

    # The last metrics of the task by name, of all fits and tests, and what the script recorded.
    metrics: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    # The fits that began, how long they took, and the samples that they trained on.
    fits: int = 0
    seconds: float = 0.0
    samples: int = 0
    # Of the last fit: its steps, its Trainer, why it ended, and whether its task has a test.
    steps: int = 0
    fitted: Trainer | None = None
    end: EndOfTraining | None = None
    has_test: bool = False
    trainer: Trainer | None = None  # the one that was used last
    notes: list[str] = field(default_factory=list)  # lines below the closing table


class Bookkeeping(Callback):
    """Validates what a fit begins with, and notes what it came to.

    The first Trainer of a run that is resumed gets its checkpoint, without tensors.
    """

    def __init__(
        self,
        results: Results,
        cfg: DictConfig,
        checkpoint: dict[str, Any] | None = None,
        resume: Path | None = None,
    ) -> None:
        self.results = results
        self.cfg = cfg
        self.checkpoint = checkpoint
        self.resume = resume
        self._started = 0.0
        self._samples_before = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reject what would fail once training has ended, or not fail at all."""
        self.results.trainer = trainer
        if trainer.state.fn != TrainerFn.FITTING:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if self.cfg.get("test"):
            reject_without_test(pl_module)
            reject_without_test(data)
        if self.checkpoint is not None and getattr(trainer, "resumes", False):
            reject_other_network(pl_module, self.checkpoint, str(self.resume))
        self.checkpoint = None
        self.results.fits += 1
        self.results.fitted = trainer
        self._started = time.perf_counter()
        self._samples_before = cast(OneCurve, trainer.strategy).samples_seen

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint[FIT] = self.results.fits

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Reject a checkpoint of another fit of the script: its progress is not this one's."""
        saved, now = checkpoint.get(FIT, 1), self.results.fits
        if trainer.state.fn == TrainerFn.FITTING and saved != now:
            raise UserError(
                f"resume: {trainer.ckpt_path} was saved by fit {saved} of the script, and this is "
                f"fit {now}; let the script resume that one: `if not run.is_over({now}):` before "
                "this fit"
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._note(trainer, pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        if isinstance(exception, EndedEarly):
            self._note(trainer, pl_module)

    def _note(self, trainer: Trainer, task: LightningModule) -> None:
        results = self.results
        results.metrics |= task_metrics(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            return
        samples = cast(OneCurve, trainer.strategy).samples_seen - self._samples_before
        results.seconds += time.perf_counter() - self._started
        results.samples += samples
        results.steps = steps_done(trainer)
        results.has_test = is_overridden("test_step", task)
        results.end = end_of_training(trainer, _stopping(self.cfg))
        line = no_validation(trainer) if samples else None
        results.notes += [line] if line else []
        if trainer.ckpt_path is not None and not samples and trainer.is_global_zero:
            end = results.end
            print(f"resume: the run is over: {end.reason}; to train further add {end.to_continue}")


def reject_without_test(part: Any) -> None:
    """Reject a task or data that Lightning would reject once the test begins, after the training.

    Loaders that a script passes one by one are its own matter.
    """
    needed = {LightningModule: "test_step", LightningDataModule: "test_dataloader"}
    for kind, name in needed.items():
        if isinstance(part, kind) and not is_overridden(name, part):
            raise UserError(f"{type(part).__name__} has no {name}; write one, or use test=false")


def _stopping(cfg: DictConfig) -> dict[str, str]:
    """The names of callbacks that stop early, by the metric that they monitor, and of a Timer."""
    names: dict[str, str] = {}
    for name, entry in (cfg.get("callbacks") or {}).items():
        target = str(entry.get("_target_")) if entry else ""
        if target.endswith("EarlyStopping"):
            names[str(entry.get("monitor"))] = str(name)
        elif target.endswith(".Timer"):
            names["Timer"] = str(name)
    return names
