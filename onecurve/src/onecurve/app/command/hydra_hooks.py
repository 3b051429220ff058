"""Hydra's callback that validates a single run before its output directory is made."""

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from ... import machine
from ...errors import REFUSED, UserError, say, stop
from ...launch.context import RunContext
from ...launch.meeting import meet_ranks
from ..nodes import become_torchrun, is_pod_of_several
from ..run.record import LockedDirectory, lock_directory
from ..run.redaction import overrides_of
from .check import check, in_one_line

# Callbacks that others may stand beside, but not replace or remove.
OURS = ("hydra.callbacks.refuse_before_run", "hydra.callbacks.sweep")
UNTOUCHED = {"hydra.callbacks", "hydra/callbacks", *OURS, *(f"{key}._target_" for key in OURS)}
SECONDS_FOR_THE_FIRST_RANK_TO_REPORT = 5
# Passes the context from this callback to the task function; only Hydra is between them.
RUN: ContextVar[RunContext] = ContextVar("RUN")


@contextmanager
def ending_the_command(config: DictConfig) -> Iterator[None]:
    """End the command by an error: of an Exception in a callback Hydra makes a warning."""
    try:
        yield
    except UserError as error:
        stop_once(error)
    except OmegaConfBaseException as error:
        stop_once(in_one_line(error, config))
    except Exception:
        say(traceback.format_exc())
        sys.exit(1)


class RefuseBeforeRun(Callback):
    """Checks a single run before Hydra makes its output directory.

    Ranks that torchrun or srun has started agree on its directory here. The jobs of a sweep
    validate themselves, so that a rejected one does not keep the others from running: `app.sweep`.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """The configuration was composed, and nothing is on disk yet."""
        HydraConfig.instance().set_config(config)
        with ending_the_command(config):
            job = config.copy()
            OmegaConf.set_struct(job, False)
            job.pop("hydra")
            overrides = overrides_of(config.hydra.overrides.task)
            line = check(job, kwargs["config_name"], overrides)
            with open_dict(config):
                for name in set(config) - {"hydra", *job}:
                    del config[name]
                config.merge_with(job)
            if "strategy" in job and is_pod_of_several():
                become_torchrun(job)
            context = _hold(config, _context(config))
            RUN.set(context)
            # Of several members one prints on each terminal.
            if line and (context.members.is_first or machine.ranks_around() is None):
                say(line)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """The jobs of a sweep are runs of their own."""
        if OmegaConf.select(config, "sweep.run_job") is None:
            stop_once(
                UserError(
                    "-m: this project has no sweeps, which the group sweep brings; leave out -m, "
                    "or add `sweep: grid` to the defaults"
                )
            )


def reject_without_checks(arguments: list[str]) -> None:
    """Reject a command line that would disable the validation."""
    for word in arguments:
        key = word.partition("=")[0]
        if key == "~hydra" or key.lstrip("~") in UNTOUCHED:
            raise UserError(
                f"{word}: removes the check of a run before it starts; leave it out (a callback "
                "of Hydra's of your own is added by +hydra.callbacks.NAME._target_=CLASS)"
            )


def checked_run() -> RunContext:
    """The context that `RefuseBeforeRun` created for this run."""
    context = RUN.get(None)
    if context is None:
        raise UserError(
            "hydra.callbacks.refuse_before_run: checks a run before it starts, and was not called; "
            "have `hydra: default` among the defaults, and leave its callbacks as they are"
        )
    return context


def _context(config: DictConfig) -> RunContext:
    """Agree with the other ranks of torchrun or srun, if there are any, on the run directory."""
    run_dir = Path(os.path.abspath(str(config.hydra.run.dir)))
    ranks = machine.ranks_around()
    if ranks is None:
        return RunContext(run_dir)
    context = meet_ranks(ranks, config, run_dir)
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.run.dir = str(context.run_dir)
        if not context.members.is_first:
            config.hydra.output_subdir = None
    return context


def _hold(config: DictConfig, context: RunContext) -> RunContext:
    """The first member creates and locks the run directory."""
    words = [
        word for word in overrides_of(config.hydra.overrides.hydra) if "hydra.run.dir=" in word
    ]
    name = words[-1] if words else f"hydra.run.dir={config.hydra.run.dir}"
    held: list[LockedDirectory] = []

    def hold() -> None:
        held.append(lock_directory(context.run_dir, name))

    context.members.broadcast("directory", hold)
    return replace(context, held=held[0]) if held else context


def stop_once(error: UserError) -> NoReturn:
    """Show the error once per node: all ranks that torchrun or srun started come to it."""
    context = RUN.get(None)
    if context and context.held:
        context.held.discard()
    ranks = machine.ranks_around()
    if ranks is None or ranks.local_rank == 0:
        stop(error)
    # torchrun ends the others as soon as one has ended.
    time.sleep(SECONDS_FOR_THE_FIRST_RANK_TO_REPORT)
    sys.exit(REFUSED)
