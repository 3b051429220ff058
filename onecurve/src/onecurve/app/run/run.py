"""One run in the user's sight: what a script such as train.py builds its Trainer from.

Every command imports this module, so it imports neither torch nor Lightning before they are used.
"""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.loggers import Logger

    from ...launch.context import RunContext
    from .instantiate import Trained
    from .predict import PredictionWriter

FIT = "fit_of_script"
"""A key of checkpoints: which fit of the script saved it, from 1."""


class Run:
    """One run, in one of its ranks. A script gets it from `onecurve.app.main`.

    Attributes:
        cfg: The configuration, composed, resolved and validated.
        dir: The run directory.
        resume: The checkpoint to resume from, for ``ckpt_path``; None for a new run.
        resumed_fit: Which fit of the script saved it, from 1; 0 for a new run.
    """

    def __init__(self, config: dict[str, Any], context: "RunContext") -> None:
        from lightning.pytorch import seed_everything

        from ...checkpoint.format import read_checkpoint, reject_incomplete_state
        from .script import Results
        from .stored import STORED, TEXTS

        config = dict(config)
        self._stored, self._texts = config.pop(STORED), config.pop(TEXTS)
        # A project may have no such group.
        groups = {name: config.get(name) or {} for name in ("callbacks", "logger")}
        self.cfg: DictConfig = OmegaConf.create({**config, **groups})
        self.dir = context.run_dir
        self._context = context
        self._results: Results = Results()
        self._loggers: list[Logger] = []
        self._best: dict[int, str | None] = {}
        if self.cfg.get("seed") is not None:
            seed_everything(self.cfg.seed, workers=True, verbose=False)
        self.resume = _checkpoint_to_resume(self.cfg, context)
        self.resumed_fit = 0
        self._checkpoint: dict[str, Any] | None = None
        self._logs: dict[str, Any] | None = None  # of a checkpoint that is continued in place
        if self.resume is not None:
            self._checkpoint = read_checkpoint(self.resume, whole=False, is_checked=True)
            reject_incomplete_state(self._checkpoint, str(self.resume))
            self.resumed_fit = int(self._checkpoint.get(FIT, 1))
            self.cfg.trainer.num_sanity_val_steps = 0  # it has been validated before
            # After a restart a node may have a copy of it in another place.
            is_restart = context.attempt.checkpoint is not None
            if is_restart or self.resume.is_relative_to(self.dir):
                self._logs = self._checkpoint["logs"]

    def build(self, node: DictConfig | None, **parts: Any) -> Any:
        """Build what a node of `cfg` describes, as ``hydra.utils.instantiate`` does.

        A task gets those of `network`, `optimizer` and `scheduler` that its ``__init__`` takes,
        built from the groups ``model``, ``optimizer`` and ``scheduler``. Of a group of several,
        such as ``callbacks``, it is a list.

        Args:
            node: Such as ``cfg.task``; None builds nothing.
            parts: Arguments that replace those of the configuration.

        Raises:
            UserError: In one line, with the key of the node, if that cannot be built.
        """
        if node is None:
            return None
        from ...compat.of_hydra import key_of
        from .instantiate import build, build_group, build_task
        from .script import reject_without_test

        group = key_of(node)
        if "_target_" not in node:
            # 0 is the first job of a sweep, and None no job.
            return build_group(group, node, bool(OmegaConf.select(self.cfg, "sweep.job")))
        if group == "task":
            part = build_task(self.cfg, **parts)
            self._name_unused(part)
        else:
            part = build(group, node, **parts)
        if self.cfg.get("test") and "resume" in self.cfg:
            reject_without_test(part)
        return part

    def trainer(
        self,
        callbacks: "Sequence[Callback] | Callback | None" = None,
        logger: "Sequence[Logger] | Logger | None" = None,
        **arguments: Any,
    ) -> "Trainer":
        """Build Lightning's Trainer of the groups ``trainer`` and ``strategy``.

        The callbacks that keep a run's promises come after those that are given: signals, exact
        resume, the record. A Trainer built by hand has all of it by `trainer_arguments`.

        Args:
            callbacks: Such as ``run.build(cfg.callbacks)``.
            logger: Such as ``run.build(cfg.logger)``; metrics.csv is written as well.
            arguments: Of a Trainer, which replace those of the configuration.
        """
        from .instantiate import building, trainer_errors
        from .trainer import RunTrainer, earlier_steps

        before = earlier_steps(self._checkpoint, self._stored) if self._checkpoint else None
        with building("trainer"), trainer_errors():
            trainer = RunTrainer(**{**self._arguments(callbacks or (), logger or ()), **arguments})
        trainer.earlier_steps = before
        return trainer

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        """The arguments of a Trainer built by hand: ``L.Trainer(**run.trainer_arguments)``.

        They are those of the groups ``trainer``, ``strategy``, ``callbacks`` and ``logger``, with
        objects of their own every time.
        """
        callbacks, loggers = (self.build(self.cfg.get(name)) for name in ("callbacks", "logger"))
        return self._arguments(callbacks or (), loggers or ())

    @property
    def best(self) -> str | None:
        """The weights to test after a fit, for ``ckpt_path``; None for those at its end.

        That is what a callback averaged, such as ``swa``, else the best by a monitored metric.
        """
        from .trainer import best_checkpoint

        results = self._results
        # Found once after each fit: ranks do so together, and one may ask for it again.
        if results.fitted is not None and results.fits not in self._best:
            self._best[results.fits] = best_checkpoint(results.fitted)
        return self._best.get(results.fits)

    def trained(self, trainer: "Trainer") -> "Trained":
        """Task and data as they were trained: from the configuration in ``cfg.checkpoint``.

        Args:
            trainer: In whose precision the weights are loaded.
        """
        from .instantiate import load_trained

        return load_trained(self.cfg, trainer.precision_plugin.convert_module)

    def prediction_writer(self) -> "PredictionWriter":
        """A callback for predict.py, which writes what is predicted by its type, in one file."""
        from .predict import PredictionWriter

        return PredictionWriter(self)

    def is_over(self, fit: int) -> bool:
        """Whether a fit of the script, from 1, is over in the run that is resumed: it is skipped.

        For a script with several fits, whose checkpoint may be of a later one.
        """
        is_over = fit < self.resumed_fit
        self._results.fits = max(self._results.fits, fit if is_over else 0)
        return is_over

    def record(self, **facts: Any) -> None:
        """Add plain values by name to metrics.json, which is written when the script has ended."""
        self._results.facts |= facts

    # Of the library

    def _arguments(self, callbacks: Any, loggers: Any) -> dict[str, Any]:
        from ...checkpoint.resume_state import resume_loggers
        from ..loggers.buffered import BufferedCSVLogger
        from .trainer import trainer_arguments, writes_csv

        # A Trainer takes one of them as well.
        callbacks = [*callbacks] if isinstance(callbacks, Iterable) else [callbacks]
        loggers = [*loggers] if isinstance(loggers, Iterable) else [loggers]
        if "resume" in self.cfg and not any(writes_csv(each, self.dir) for each in loggers):
            # All fits share one.
            written = [each for each in self._loggers if writes_csv(each, self.dir)]
            csv_logger = BufferedCSVLogger(str(self.dir), "", "", flush_logs_every_n_steps=100)
            loggers += written or [csv_logger]
        if self._logs:
            resume_loggers(loggers, self._logs)
        self._loggers += [each for each in loggers if each not in self._loggers]
        checkpoint, self._checkpoint = self._checkpoint, None
        callbacks = [*callbacks, *self._callbacks(checkpoint)]
        arguments = trainer_arguments(self.cfg, self.dir, callbacks, loggers)
        if checkpoint is not None:
            # Lightning reads it once more. It is large, and not kept here.
            arguments["strategy"].checkpoint_io.preload(checkpoint, self.resume)
        return arguments

    def _callbacks(self, checkpoint: dict[str, Any] | None) -> "list[Callback]":
        """The callbacks that keep what a run promises, whatever the script does."""
        from .script import Bookkeeping

        books = Bookkeeping(self, checkpoint)
        if "resume" not in self.cfg:
            return [books]
        from ...callbacks.peak_memory import PeakMemory
        from ...checkpoint.resume_state import ResumeState
        from .monitor import MonitoredMetrics
        from .stop import StopOnSignal
        from .stored import hyperparameters

        last = self.dir / "checkpoints" / "last.ckpt"
        layout = checkpoint.get("layout") if checkpoint else None
        logs, self._logs = self._logs, None
        redact = partial(hyperparameters, texts=self._texts)
        return [
            PeakMemory(),
            ResumeState(self._stored, logs, layout, redact),
            MonitoredMetrics(self.cfg, last),
            StopOnSignal(last, self._context.listening),
            books,
        ]

    def _name_unused(self, task: Any) -> None:
        """Say which overrides change nothing, as the task takes no network, for example."""
        from ... import machine
        from ...errors import UserError, say
        from ..loggers.run_directory import typed_in
        from .instantiate import parts_taken
        from .interpolation import OF_A_TASK

        taken = parts_taken(type(task))
        idle = {group: part for group, part in OF_A_TASK.items() if part not in taken}
        groups = {word: re.split(r"[.=]", word.lstrip("+"))[0] for word in typed_in(self.dir)}
        unused = {word: idle[group] for word, group in groups.items() if group in idle}
        if "init=weights" in unused:
            file = self.cfg.init.file
            load = f"task.load_state_dict(torch.load({file!r})['state_dict'])"
            raise UserError(f"init={file}: the task takes no network; in train.py: {load}")
        if unused and machine.is_first_rank():
            what = " and no ".join(dict.fromkeys(unused.values()))
            say(f"{' '.join(unused)}: not used, as the task takes no {what}; leave it out")


def _checkpoint_to_resume(cfg: DictConfig, context: "RunContext") -> Path | None:
    number, checkpoint = context.attempt
    if number:
        where = f"from {Path(checkpoint).name}" if checkpoint else "from the start"
        most = cfg.launch.max_restarts
        # torchrun has its own limit.
        start = f"restart {number} of {most}" if number <= most else "started again"
        print(f"{start}: the ranks continue {where}")
    path = checkpoint or cfg.get("resume")
    return None if path is None else Path(path)
