"""The command line: runs a Hydra application and reports foreseeable mistakes in one line."""

import os
import re
import sys
import traceback
from collections.abc import Callable
from contextvars import copy_context
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ... import machine
from ...compat.of_hydra import composed_once, hydra_options
from ...errors import (
    REFUSED,
    UserError,
    interrupted,
    of_the_project,
    one_line,
    say,
    show_frames_of_the_project,
    stop,
    user_error_behind,
)
from ...launch.context import RankFailed, RunContext, describe_failure, was_stopped
from ...launch.process import QuickExit, print_lines_at_once
from ...machine import unchanged_environment
from ...wording import PROJECT
from .. import one_run
from ..run import record
from . import resume
from .check import in_one_line
from .explain import explain
from .hydra_hooks import checked_run, reject_without_checks
from .resolvers import register_resolvers

FULL_ERROR = "HYDRA_FULL_ERROR"
ENV_FILE = ".env"
# As a shell and Docker read it; nothing in it is replaced or run.
ENV_LINE = re.compile(
    r"""(?:export\s+)? ([A-Za-z_]\w*) \s*=\s*
        (?: '([^']*)' | "([^"]*)" | ([^\s'"\#].*?|) ) (?:\s+\#.*)?""",
    re.VERBOSE | re.ASCII,
)

# In a process that a sweep's launcher started, this module is what is imported first.
register_resolvers()


class Ended(SystemExit):
    """The end of the command, with the error to show."""

    def __init__(self, status: int, error: BaseException | None = None) -> None:
        super().__init__(status)
        self.error = error


def command(main: Callable[[], None], config_dir: Path, config_name: str) -> None:
    """Run `main`, a function made by ``hydra.main``, as the whole program.

    Exit status: 0 after a finished run, 1 after a failure or an error of Hydra's, 2 after a
    UserError; 143, 138, 140 and 130 after SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C, with a checkpoint.
    """
    end = QuickExit()
    _open_closed_streams()
    print_lines_at_once()
    project = config_dir.resolve().parent
    try:
        with unchanged_environment((PROJECT,), {PROJECT: str(project)}):
            try:
                _reject_another_python(project)
                read_env_file(config_dir.parent)
                machine.ranks_around()  # variables of a launcher that are no numbers
            except UserError as refusal:
                stop(refusal)
            # In a copy of the context, so that its variables do not leak into the next run.
            copy_context().run(_run, main, config_dir, config_name)
        end.status = 0
    except SystemExit as error:
        end.status = error.code if isinstance(error.code, int) else None
        raise


def run(work: str, config: DictConfig) -> float | None:
    """Launch a run whose configuration was validated, and record how it ended.

    `work` is the dotted name of what a rank does, as ``onecurve.app.run.fit.work``. A sweeper
    compares jobs by what is returned, the last value of ``monitor``, if there is one.
    """
    hydra = HydraConfig.get()
    if hydra.job.chdir:
        resume.make_absolute(config, Path(hydra.runtime.cwd))
    run_job = OmegaConf.select(config, "sweep.run_job")
    if hydra.mode == RunMode.MULTIRUN and run_job is not None:
        value: float | None = get_method(run_job)(work, config)
        return value
    context: RunContext | None = None
    try:
        context = checked_run()
        metrics = one_run.start(work, config, context)
    except BaseException as error:
        refusal = user_error_behind(error)
        if refusal is None and isinstance(error, OmegaConfBaseException):
            refusal = in_one_line(error, config)
        reports = context is None or context.members.reports_failure()
        if context:
            _record(context, config, error, refusal, reports)
        shown = refusal or error
        if interrupted(shown) and not isinstance(shown, RankFailed):
            raise KeyboardInterrupt from shown
        # Past Hydra, which would put a line of its own before the error's.
        if isinstance(shown, RankFailed | UserError):
            status = shown.status if isinstance(shown, RankFailed) else REFUSED
            raise Ended(status, shown if reports else None) from None
        if context and not of_the_project(shown):
            shown.add_note(f"logs/rank_0.log of the run has all frames: {context.run_dir}")
        raise shown from None
    finally:
        if context and context.held:
            context.held.lock.release()
    return metrics.get(str(config.get("monitor")))


def _record(
    context: RunContext,
    config: DictConfig,
    error: BaseException,
    refusal: UserError | None,
    reports: bool,
) -> None:
    """Write how the run failed, or undo it if it had not begun."""
    # Ranks that torchrun started end one by one, and the first to do so knows why.
    writes = reports if machine.ranks_around() else context.members.is_first
    if writes and refusal:
        was_empty = context.held is not None and context.held.was_empty
        runs = OmegaConf.select(config, "paths.runs")
        record.rejected(context.run_dir, was_empty, runs, str(refusal))
    elif writes:
        how = describe_failure(error)
        record.unfinished(context.run_dir, was_stopped(error), how)
    if context.held and not was_stopped(error):
        record.restore_configuration(context.held)


def _run(main: Callable[[], None], config_dir: Path, config_name: str) -> None:
    typed, shows_all = sys.argv, os.environ.get(FULL_ERROR) == "1"
    try:
        reject_without_checks(typed[1:])
        arguments = resume.expand(typed[1:], config_dir, config_name)
        # Hydra would not understand `-m` between two overrides.
        sys.argv = [typed[0], *sorted(arguments, key=lambda word: word not in resume.SWEEP_FLAGS)]
        # Makes Hydra raise its errors instead of printing them, so that the nearest key can be
        # added.
        full = unchanged_environment([FULL_ERROR], {FULL_ERROR: "1"})
        with full, composed_once(_mode_asked_for(sys.argv[1:])):
            main()
    except Ended as end:
        if isinstance(end.error, UserError):
            if shows_all and end.error.__cause__ is not None:
                traceback.print_exception(end.error.__cause__)
            stop(end.error)
        if end.error is not None:
            say(str(end.error))
        raise
    except RankFailed as error:
        say(str(error))
        sys.exit(error.status)
    except (KeyboardInterrupt, Exception) as error:
        if interrupted(error):
            say("stopped by Ctrl-C")
            sys.exit(130)
        if shows_all:
            raise
        if refusal := user_error_behind(error):
            stop(refusal)
        below = _below_hydra(error.__traceback__)
        if below is None or isinstance(error, HydraException | OmegaConfBaseException):
            line = explain(error, config_dir, config_name, typed[1:])
            say(f"error: {one_line(line)}")
        else:
            show_frames_of_the_project(error.with_traceback(below))
            say("".join(traceback.format_exception(error)).rstrip())
        sys.exit(1)
    finally:
        sys.argv = typed


def _below_hydra(trace: TracebackType | None) -> TracebackType | None:
    """The traceback below Hydra's call of the task function; None if it was not called."""
    while trace is not None and trace.tb_frame.f_code.co_name != "run_job":
        trace = trace.tb_next
    return trace.tb_next if trace else None


# Before Hydra reads the command


def _open_closed_streams() -> None:
    """Lead standard streams that were closed (`2>&-`) nowhere.

    The next file would else take their place, and be written into.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115


def read_env_file(project: Path) -> None:
    """Set the variables of one machine, such as keys; one that is set already stays as it is.

    A line that cannot be read is named by its number, for it may hold a secret.
    """
    file = project / ENV_FILE
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{file}: cannot be read: {reason}; correct that, or remove it") from None
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        found = ENV_LINE.fullmatch(line)
        if found is None:
            raise UserError(
                f"{file}, line {number}: must be NAME=VALUE, such as WANDB_API_KEY=... or "
                "WANDB_API_KEY='...', and a quote that opens a value closes it"
            )
        name, *values = found.groups()
        os.environ.setdefault(name, next(value for value in values if value is not None))


def _reject_another_python(project: Path) -> None:
    """Without the project's own package every other line would be about its classes."""
    for file in project.glob("src/*/__init__.py"):
        name = file.parent.name
        if find_spec(name) is None:
            raise UserError(
                f"{name} (the package in src/) is not installed in this Python; type "
                "`make setup`, then `source .venv/bin/activate` (or `uv run`)"
            )


def _mode_asked_for(arguments: list[str]) -> RunMode:
    """Parse Hydra's own options; what its parser would reject with a page of usage is one line."""
    parser = hydra_options()

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}; a key has no dash: KEY=VALUE; see --help for the options")

    parser.error = refuse  # type: ignore[method-assign]
    given = parser.parse_args(arguments)
    # `-paths.root` is read as `-p aths.root`, which says of which part --cfg is to show.
    if given.package is not None and given.cfg is None:
        refuse(f"-p{given.package}: is no option of a run")
    return RunMode.MULTIRUN if given.multirun else RunMode.RUN
