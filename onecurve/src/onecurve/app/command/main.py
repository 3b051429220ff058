"""The command of a script: composed once, validated, launched and recorded, from top to bottom.

    from onecurve import app

    @app.main(config="train")
    def train(run: app.Run) -> None:
        ...

    if __name__ == "__main__":
        train()

Ranks import the script again, so this module imports only the standard library before a command.
"""

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable
from functools import partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import PROJECT, UserError

if TYPE_CHECKING:
    from ...compat.of_hydra import Application
    from ...launch.context import RunContext
    from ..run.run import Run

FULL_ERROR = "HYDRA_FULL_ERROR"


def main(config: str) -> "Callable[[Callable[[Run], Any]], Script]":
    """Make a function what a script does in every rank; calling it runs the command.

    Args:
        config: The configuration, by its name in ``configs/`` beside the script.
    """
    return partial(Script, config=config)


class Script:
    """A function of a script, which is called with a `Run` in every rank.

    The number that it returns, if it does, is what a sweep compares instead of ``monitor``.
    """

    def __init__(self, function: "Callable[[Run], Any]", config: str) -> None:
        self.function = function
        self.config = config
        update_wrapper(self, function)

    def __call__(self) -> None:
        """Run the command that was typed, as the whole program."""
        file = Path(self.function.__code__.co_filename).resolve()
        run(f"{file}:{self.function.__name__}.in_rank", file.parent / "configs", self.config)

    @property
    def in_rank(self) -> "Callable[[dict[str, Any], RunContext], dict[str, float]]":
        """What a rank does: `onecurve.app.run.script.in_rank` with this function.

        Lightning is imported by asking for it, before a rank sets up its logs.
        """
        from ..run.script import in_rank

        return partial(in_rank, self.function)


def run(work: str, configs: Path, config_name: str) -> None:
    """Run a command as the whole program; `work` is what each rank does, see `worker.resolved`.

    Exit status: 0 after a finished run, 1 after a failure or an error of Hydra's, 2 after a
    UserError; 143, 138, 140 and 130 after SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C, with a checkpoint.
    """
    from ... import machine
    from ...compat.of_hydra import application
    from ...launch.process import QuickExit, print_lines_at_once
    from . import environment
    from .resolvers import register_resolvers

    end = QuickExit()
    environment.open_closed_streams()
    register_resolvers()
    print_lines_at_once()
    project = configs.resolve().parent
    try:
        with machine.unchanged_environment((PROJECT,), {PROJECT: str(project)}):
            try:
                environment.reject_another_python(project)
                environment.read_env_file(project)
                machine.ranks_around()  # variables of a launcher that are no numbers
                options = _options(sys.argv[1:])
                with application(configs, config_name, options) as hydra:
                    _answer(work, hydra, options)
            except (KeyboardInterrupt, Exception) as error:
                _end(error)
        end.status = 0
    except SystemExit as ending:
        end.status = ending.code if isinstance(ending.code, int) else None
        raise


def _answer(work: str, hydra: "Application", options: Namespace) -> None:
    """Show what an option of Hydra's asks for, or run; an error of Hydra's is explained."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from .explain import explain
    from .resume import expand

    failure: BaseException | None = None
    try:
        options.overrides = expand(hydra, options.overrides, options.multirun)
        if not hydra.show(options):
            failure = _run_or_sweep(work, hydra, options)
    except (KeyboardInterrupt, Exception) as error:
        _end(error, partial(explain, error, hydra.config_name, options.overrides))
    if isinstance(failure, HydraException | OmegaConfBaseException):
        _end(failure, partial(explain, failure, hydra.config_name, options.overrides))
    if failure is not None:
        _end(failure)


def _run_or_sweep(work: str, hydra: "Application", options: Namespace) -> Exception | None:
    """Compose and validate, claim the run directory, and run; or run a sweep.

    Returns the error of the run, or of the sweep; it has not begun where one is raised.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from hydra.utils import get_method

    from ... import machine
    from ...errors import say
    from ...launch.nodes import become_torchrun, is_pod_of_several
    from . import job
    from .check import check_run
    from .claim import claim

    overrides = options.overrides
    is_sweep = options.multirun or "hydra.mode=MULTIRUN" in overrides
    config = hydra.compose(overrides, is_sweep)
    if not is_sweep and config.hydra.mode == RunMode.MULTIRUN:
        config = hydra.compose(overrides, is_sweep=True)
    if config.hydra.mode == RunMode.MULTIRUN:
        try:
            get_method(config.sweep.run)(hydra, config, work)
        except Exception as error:
            return error
        return None
    hydra.reject_several_values(overrides)
    HydraConfig.instance().set_config(config)
    line = check_run(config, hydra.config_name)
    if "strategy" in config and is_pod_of_several():
        devices = machine.local_devices(config.trainer, one_device=False)
        become_torchrun(devices, config.launch.max_restarts)
    context = claim(config)
    # Of several members one prints on each terminal.
    if line and (context.members.is_first or machine.ranks_around() is None):
        say(line)
    return hydra.run(config, partial(job.run, work, context))


def _end(error: BaseException, explained: Callable[[], str] | None = None) -> NoReturn:
    """End the command with an error: a line where one can be found, else the project's frames.

    `explained` finds the line for an error of Hydra's; None for an error of other code.
    """
    from ...errors import (
        interrupted,
        one_line,
        say,
        show_frames_of_the_project,
        user_error_behind,
    )
    from ...launch.context import RankFailed
    from .claim import stop_once

    shows_all = os.environ.get(FULL_ERROR) == "1"
    if isinstance(error, RankFailed):
        say(str(error))
        sys.exit(error.status)
    if interrupted(error):
        say("stopped by Ctrl-C")
        sys.exit(130)
    refusal = user_error_behind(error)
    if refusal and shows_all and refusal.__cause__ is not None:
        traceback.print_exception(refusal.__cause__)
    elif shows_all and not isinstance(error, UserError):
        traceback.print_exception(error)
        sys.exit(1)
    if refusal:
        stop_once(refusal)
    if explained is not None:
        say(f"error: {one_line(explained())}")
    else:
        show_frames_of_the_project(error)
        say("".join(traceback.format_exception(error)).rstrip())
    sys.exit(1)


def _options(words: list[str]) -> Namespace:
    """Hydra's own options; what its parser would reject with a page of usage is one line."""
    from ...compat.of_hydra import hydra_options

    parser = hydra_options()

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message}; a key has no dash: KEY=VALUE; see --help for the options")

    parser.error = refuse  # type: ignore[method-assign]
    # Argparse would not understand `-m` between two overrides.
    options = parser.parse_args(sorted(words, key=lambda word: word not in ("-m", "--multirun")))
    # `-paths.root` is read as `-p aths.root`, which says of which part --cfg is to show.
    if options.package is not None and options.cfg is None:
        refuse(f"-p{options.package}: is no option of a run")
    return options
