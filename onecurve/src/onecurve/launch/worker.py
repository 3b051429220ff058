"""The process of a rank: logging, breakpoints, errors and the process group around its work."""

import logging
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.util import module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import torch
from torch import distributed

from .. import machine
from ..errors import UserError, chain, show_frames_of_the_project, user_error_behind
from ..machine import LIGHTNING_VARIABLES, Ranks, unchanged_environment
from ..wording import PROJECT
from .addresses import HOST, gloo_on_loopback, listening_store, stay_on_this_machine
from .context import Metrics, RankFailed, RunContext, is_stopped, unless_stopped
from .forkserver import end_with_the_parent
from .meeting import meet_ranks
from .process import (
    Breakpoint,
    Verbose,
    log_file,
    log_to_file,
    print_lines_at_once,
    redirect_output,
)

SECONDS_TO_BLAME_ANOTHER = 2
LISTENING = "listening"
"""A subfolder of the one that an agent shares with its ranks: PIDs of ranks that handle signals."""
# Variables that tell torch and gloo the store of a single rank, and those that Lightning sets.
VARIABLES_OF_ONE_RANK = (
    *LIGHTNING_VARIABLES,
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT",
    "GLOO_SOCKET_IFNAME",
)

Work = Callable[..., Any]


def resolved(work: Work | str) -> Work:
    """Import what ranks do: "onecurve.app.parity.work", or "PATH/train.py:train.in_rank"."""
    if not isinstance(work, str):
        return work
    # Before the function's module imports Lightning.
    from ..compat import torchmetrics_without_scipy  # noqa: F401

    file, _, name = work.rpartition(":")
    if file:
        function: Work = attrgetter(name)(_script(Path(file)))
        return function
    named: Work = resolve_name(":".join(work.rsplit(".", 1)))
    return named


def _script(file: Path) -> ModuleType:
    """Import a script as a module of its name, unless this process began with it."""
    main = sys.modules["__main__"]
    begun = getattr(main, "__file__", None)
    if begun is not None and Path(begun).resolve() == file:
        return main
    if (loaded := sys.modules.get(file.stem)) and getattr(loaded, "__file__", None) == str(file):
        return loaded
    # As Python does for the script of a command, for what lies beside it.
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None, f"{file} is a script of Python"
    assert spec.loader is not None, f"{file} is a script of Python"
    module = module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class RankOptions:
    """Options that are passed to every rank."""

    context: RunContext | None = None  # the context of the run; None for a function of a script
    logs: Path | None = None  # the folder for log files; None to leave everything on the console
    # The folder that the agent shares with its ranks; None if torchrun is the agent.
    shared: Path | None = None
    debug_rank: int = 0  # the rank that `breakpoint()` stops
    verbose: Verbose = False  # which loggers log debug messages, see `Verbose`
    # How a rank starts processes, such as the workers of its loaders: as the script does.
    start_method: str = field(default_factory=multiprocessing.get_start_method)
    # The project of a command, which a server of ranks that was there before does not know.
    project: str | None = field(default_factory=lambda: os.environ.get(PROJECT))


def main(work: Work | str, arguments: tuple[Any, ...], options: RankOptions) -> Any:
    """Entry point of a rank that torchelastic has started; returns the result on rank 0.

    The argument of a run is the configuration, to which the context is added.
    """
    try:
        return _do(work, arguments, options)
    except Exception as error:
        show_frames_of_the_project(error)  # the log has them
        raise


def _do(work: Work | str, arguments: tuple[Any, ...], options: RankOptions) -> Any:
    if options.shared:
        end_with_the_parent()
    # Python would have a rank start them from a forkserver, because it was.
    multiprocessing.set_start_method(options.start_method, force=True)
    ranks = machine.ranks_around()
    assert ranks is not None, "RANK and LOCAL_RANK are set in every rank"
    rank, logs = ranks.rank, options.logs
    if options.project is not None:
        os.environ[PROJECT] = options.project
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = Breakpoint(rank, options.debug_rank)
    stay_on_this_machine(ranks)
    # If the variable is set, torch has read it already.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, machine.count_cores() // ranks.on_this_node))
    print_lines_at_once()
    if logs and rank == 0:
        logging.basicConfig(format="%(message)s")
        logging.getLogger().handlers[0].setLevel(logging.WARNING)
    elif logs:
        redirect_output(log_file(logs, rank))
    # Imported before logging is set up, because Lightning adds handlers of its own.
    do = resolved(work)
    with log_to_file(logs, rank, options.verbose) if logs else nullcontext():
        try:
            if options.context:
                context = options.context
                if options.shared:
                    context = replace(context, listening=options.shared / LISTENING)
                    context = _of_attempt(context, options, arguments[0], ranks)
                arguments = (*arguments, context)
            result = do(*arguments)
        except Exception as error:
            if any(lost_contact(f"{type(each).__name__}: {each}") for each in chain(error)):
                # This rank only lost contact: let the agent see the failure of the other first.
                time.sleep(SECONDS_TO_BLAME_ANOTHER)
            if refusal := user_error_behind(error):
                # The parent recognises the error by the name of this class, not of a subclass.
                raise UserError(str(refusal)) from None
            raise
    # Other ranks return nothing: the agent would have to read their results from queues.
    return result if rank == 0 or is_stopped(result) else None


def _of_attempt(
    context: RunContext, options: RankOptions, config: dict[str, Any], ranks: Ranks
) -> RunContext:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        return context
    met = meet_ranks(ranks, config, context.run_dir)
    return replace(context, members=met.members, attempt=met.attempt)


def started_elsewhere(work: str, config: dict[str, Any], options: RankOptions) -> Metrics:
    """Run a rank that torchrun or srun has started: `main`, with its own report of failures."""

    def ended(number: int, _frame: object) -> None:
        raise RankFailed(f"stopped by {signal.Signals(number).name}", 128 + number)

    # torchrun stops the other ranks by SIGTERM. During a fit, Lightning handles it instead.
    signal.signal(signal.SIGTERM, ended)
    sys.stderr.flush()
    console = os.dup(2)
    try:
        done = main(work, (config,), options)
        metrics: Metrics | None = unless_stopped(done)
        return metrics or {}
    except (UserError, RankFailed):
        raise
    except Exception as error:
        ranks = machine.ranks_around()
        rank = ranks.rank if ranks else 0
        trace = "".join(traceback.format_exception(error)).strip()
        assert options.logs is not None
        where = f"rank {rank} failed (its log: {log_file(options.logs, rank)})"
        raise RankFailed(f"{where}\n{trace}") from None
    finally:
        sys.stderr.flush()
        os.dup2(console, 2)
        os.close(console)


@contextmanager
def only_rank() -> Iterator[None]:
    """Make this process the only rank of a run, and clean up for the next job of a sweep.

    A strategy for several processes creates a process group even for one. Without this, its store
    would listen on all networks of the machine.
    """
    mine = not distributed.is_initialized()
    store = listening_store(HOST)
    with unchanged_environment(VARIABLES_OF_ONE_RANK):
        os.environ |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(store.port)}
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        gloo_on_loopback()
        try:
            yield
        finally:
            if mine and distributed.is_initialized():
                distributed.destroy_process_group()


def lost_contact(said: str) -> bool:
    """Whether an error means that another rank is gone: PyTorch's DistErrors, or gloo's errors."""
    return re.match(r"Dist\w*Error: ", said) is not None or "gloo" in said
