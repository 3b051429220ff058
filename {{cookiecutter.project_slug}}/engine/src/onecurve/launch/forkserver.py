"""The warm server from which ranks are forked: it has imported the stack once."""

import multiprocessing
import os
import shutil
import sys
import tempfile
from multiprocessing import forkserver, util

# In this order. What is not installed is passed over.
PRELOADED = (
    "onecurve.launch.forkserver_exit",
    "hydra",
    "lightning.pytorch",
    "torchvision",
    "torch.distributed.pipelining",
    "onecurve.run.fit",
)
# A socket has a name of 107 bytes at most, to which multiprocessing adds two of its own.
LONGEST_FOLDER = 60
SHORT_FOLDER = "/tmp"


def warm_up() -> None:
    """Start the server, so that its imports overlap with what the parent does meanwhile.

    It only imports: a started thread pool or a touched GPU would not survive the fork.
    """
    _keep_addresses_short()
    # A search has imported it, and its ranks will.
    search = [name for name in ("optuna",) if name in sys.modules]
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *search])
    forkserver.ensure_running()


def _keep_addresses_short() -> None:
    """Put multiprocessing's sockets elsewhere where TMPDIR is too long for them."""
    settings = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    is_long = len(os.fsencode(tempfile.gettempdir())) > LONGEST_FOLDER
    if is_long and settings.get("tempdir") is None and os.access(SHORT_FOLDER, os.W_OK):
        folder = tempfile.mkdtemp(prefix="pymp-", dir=SHORT_FOLDER)
        util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
        settings["tempdir"] = folder
