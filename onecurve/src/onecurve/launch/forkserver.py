"""The warm server from which ranks are forked: it has imported the stack once."""

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from multiprocessing import resource_tracker, util

from ..errors import UserError

# In this order. What is not installed is passed over.
PRELOADED = (
    "onecurve.launch.forkserver_start",
    "hydra",
    "onecurve.compat.torchmetrics_without_scipy",
    "lightning.pytorch",
    "torchvision",
    "torch.distributed.pipelining",
    "onecurve.run.fit",
    "onecurve.launch.worker",  # what a rank begins with
)
# A socket has a name of 107 bytes at most, to which multiprocessing adds two of its own.
LONGEST_FOLDER = 60
SHORT_FOLDER = "/tmp"

# How refusals say it.
MISSING = "forkserver, which this system does not have"
ELSEWHERE = "Linux, macOS or WSL"


def is_here() -> bool:
    """Whether Python has a forkserver on this system."""
    return "forkserver" in multiprocessing.get_all_start_methods()


def warm_up() -> None:
    """Start the server, so that its imports overlap with what the parent does meanwhile.

    It only imports: a started thread pool or a touched GPU would not survive the fork.

    Raises:
        UserError: If this system has no such server, as Windows.
    """
    if not is_here():
        raise UserError(f"several processes are started by {MISSING}; use one, or {ELSEWHERE}")
    from multiprocessing import forkserver

    _keep_addresses_short()
    # A search has imported it, and its ranks will.
    search = [name for name in ("optuna",) if name in sys.modules]
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *search])
    # First, as its start would let Ctrl-C through again.
    resource_tracker.ensure_running()
    # Ctrl-C is for the ranks: a server that imports would print where it was. The ranks hear it
    # again by forkserver_start.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _keep_addresses_short() -> None:
    """Put multiprocessing's sockets elsewhere where TMPDIR is too long for them."""
    settings = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    is_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER
    if is_long and settings.get("tempdir") is None and os.access(SHORT_FOLDER, os.W_OK):
        folder = tempfile.mkdtemp(prefix="pymp-", dir=SHORT_FOLDER)
        util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
        settings["tempdir"] = folder
