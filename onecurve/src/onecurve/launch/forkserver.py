"""The server from which ranks are forked, which has imported all packages once.

This module is the first that the server imports itself, and begins it there (`_begin_server`).
"""

import ctypes
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from functools import partial
from multiprocessing import resource_tracker, util

from ..errors import UserError
from ..machine import SIGNALS, signals_blocked, unchanged_environment
from .process import QuickExit

# Imported in this order; packages that are not installed are skipped.
PRELOADED = (
    "onecurve.launch.forkserver",
    "hydra",
    "onecurve.compat.torchmetrics_without_scipy",
    "lightning.pytorch",
    "torchvision",
    "torch.distributed.pipelining",
    "onecurve.app.run.script",
    "onecurve.launch.worker",  # the entry point of a rank
)
# The path of a socket has at most 107 bytes, including two components that multiprocessing adds.
LONGEST_FOLDER = 60
SHORT_FOLDER = "/tmp"
CLIENT = "ONECURVE_FORKSERVER_CLIENT"  # the process that starts the server, which it tells that
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>; children do not inherit what it sets
WARNINGS, QUIET_TRACKER = "PYTHONWARNINGS", "ignore:resource_tracker"

# Parts of error lines.
MISSING = "forkserver, which this system does not have"
ELSEWHERE = "Linux, macOS or WSL"


def is_here() -> bool:
    """Whether Python has a forkserver on this system."""
    return "forkserver" in multiprocessing.get_all_start_methods()


def warm_up() -> None:
    """Start the server early, so that its imports run in parallel to the parent's work.

    The server only imports: thread pools and CUDA contexts would not survive the fork.
    """
    if not is_here():
        raise UserError(f"several processes are started by {MISSING}; use one, or {ELSEWHERE}")
    from multiprocessing import forkserver

    _keep_addresses_short()
    # If the parent of a search has imported Optuna, its ranks will need it as well.
    search = [name for name in ("optuna",) if name in sys.modules]
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *search])
    # Ranks need both until they have saved: no signal to all processes of the run is to end them.
    # Children of the server unblock signals.
    # What a command that is killed has left, the tracker removes without a word.
    quiet = {WARNINGS: ",".join(filter(None, (os.environ.get(WARNINGS), QUIET_TRACKER)))}
    with signals_blocked(), unchanged_environment((WARNINGS,), quiet):
        resource_tracker.ensure_running()
    # Once more, because that has unblocked two of them.
    with signals_blocked(), unchanged_environment((CLIENT,), {CLIENT: str(os.getpid())}):
        forkserver.ensure_running()


def _keep_addresses_short() -> None:
    """Put multiprocessing's sockets into /tmp if the path of TMPDIR is too long for them."""
    settings = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    is_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER
    if is_long and settings.get("tempdir") is None and os.access(SHORT_FOLDER, os.W_OK):
        folder = tempfile.mkdtemp(prefix="pymp-", dir=SHORT_FOLDER)
        util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
        settings["tempdir"] = folder


def end_with_the_parent() -> None:
    """Kill this process when its parent ends, however that does.

    A rank whose agent is gone would keep training a run that is resumed meanwhile.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _begin_server(client: int) -> None:
    """Set up how the server ends, and how its children begin.

    It ends at once when its last client is gone: on Linux also while it still imports, of which a
    busy machine may make minutes. It was started with signals blocked; its children unblock them.
    """
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != client:  # it has ended before
            os._exit(0)
        # It is the end of the thread that started it which kills: not once there are ranks, of
        # others.
        os.register_at_fork(before=partial(prctl, PR_SET_PDEATHSIG, 0))
    QuickExit(status=0)
    os.register_at_fork(after_in_child=_begin_rank)


def _begin_rank() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    # Imported objects stay alive: the garbage collector need not visit them.
    gc.freeze()


if client := os.environ.pop(CLIENT, None):
    _begin_server(int(client))
