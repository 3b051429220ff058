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
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import torch
from torch import distributed

from .. import machine
from ..errors import PROJECT, UserError, chain, show_frames_of_the_project, user_error_behind
from ..machine import LIGHTNING_VARIABLES, unchanged_environment
from .addresses import HOST, OF_AGENTS, gloo_on_loopback, listening_store
from .context import Metrics, RankFailed, RunContext, is_stopped, unless_stopped
from .forkserver import end_with_the_parent
from .nodes import meet_ranks
from .process import (
    Verbose,
    log_file,
    log_to_file,
    print_lines_at_once,
    redirect_output,
    stop_at_breakpoints,
)

SECONDS_TO_BLAME_ANOTHER = 2
LISTENING = "listening"
"""A subfolder of the one that an agent shares with its ranks: PIDs of ranks that handle signals."""
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
LOST_CONTACT = re.compile(r"Dist\w*Error: |.*gloo", re.DOTALL)
"""What the errors say of a rank that has lost another: PyTorch's DistErrors, and gloo's."""

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
    # As Python does for the script of a command, for what lies beside it.
    if sys.path[0] != str(file.parent):
        sys.path.insert(0, str(file.parent))
    if getattr(sys.modules.get(file.stem), "__file__", None) != str(file):
        sys.modules.pop(file.stem, None)  # of another project
    return import_module(file.stem)


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
    logs, rank = options.logs, _begin(options)
    try:
        # Imported before logging is set up, because Lightning adds handlers of its own.
        do = resolved(work)
        with log_to_file(logs, rank, options.verbose) if logs else nullcontext():
            try:
                if options.context:
                    arguments = (*arguments, _of_attempt(options.context, options, arguments[0]))
                result = do(*arguments)
            except Exception as error:
                if any(LOST_CONTACT.match(f"{type(e).__name__}: {e}") for e in chain(error)):
                    # Let the agent see the failure of the other rank first.
                    time.sleep(SECONDS_TO_BLAME_ANOTHER)
                if refusal := user_error_behind(error):
                    # The parent recognises the error by the name of this class, no subclass's.
                    raise UserError(str(refusal)) from None
                raise
    except Exception as error:
        show_frames_of_the_project(error)  # the log has them
        raise
    # Other ranks return nothing: the agent would have to read their results from queues.
    result = result if rank == 0 or is_stopped(result) else None
    try:
        multiprocessing.reducer.ForkingPickler.dumps(result)  # else torchelastic hides why
    except Exception as error:
        raise UserError(
            f"onecurve.launch: a rank cannot return a {type(result).__name__} ({error}); return "
            "numbers or tensors, and save what was trained by trainer.save_checkpoint"
        ) from None
    return result


def _begin(options: RankOptions) -> int:
    """Set this process up as a rank; returns its number."""
    if options.shared:
        end_with_the_parent()
    # Python would have a rank start them from a forkserver, because it was.
    multiprocessing.set_start_method(options.start_method, force=True)
    ranks = machine.ranks_around()
    assert ranks is not None, "RANK and LOCAL_RANK are set in every rank"
    if options.project is not None:
        os.environ[PROJECT] = options.project
    stop_at_breakpoints(ranks.rank, options.debug_rank)
    if ranks.nodes == 1 and os.environ.get("MASTER_ADDR", "") in ("localhost", HOST):
        gloo_on_loopback()
    # If the variable is set, torch has read it already.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, machine.count_cores() // ranks.on_this_node))
    print_lines_at_once()
    if options.logs and ranks.rank == 0:
        logging.basicConfig(format="%(message)s")
        logging.getLogger().handlers[0].setLevel(logging.WARNING)
    elif options.logs:
        redirect_output(log_file(options.logs, ranks.rank))
    return ranks.rank


def _of_attempt(context: RunContext, options: RankOptions, config: dict[str, Any]) -> RunContext:
    """The context of a run in this rank; our agent's ranks agree anew after a restart."""
    if options.shared is None:
        return context
    context = replace(context, listening=options.shared / LISTENING)
    ranks = machine.ranks_around()
    if ranks is None or os.environ[RESTARTS] == "0":
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
        metrics: Metrics | None = unless_stopped(main(work, (config,), options))
        return metrics or {}
    except (UserError, RankFailed):
        raise
    except Exception as error:
        assert options.logs is not None
        rank = int(os.environ["RANK"])
        trace = "".join(traceback.format_exception(error)).strip()
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
    # What tells torch and gloo the store, and what Lightning sets.
    names = (*LIGHTNING_VARIABLES, OF_AGENTS, RESTARTS, "GLOO_SOCKET_IFNAME")
    address = {"MASTER_ADDR": HOST, "MASTER_PORT": str(store.port)}
    with unchanged_environment(names, {**address, OF_AGENTS: "True", RESTARTS: "0"}):
        gloo_on_loopback()
        try:
            yield
        finally:
            if mine and distributed.is_initialized():
                distributed.destroy_process_group()
