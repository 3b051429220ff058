"""The warm server from which ranks are forked: it has imported the stack once."""

import multiprocessing
import sys
from multiprocessing import forkserver

# In this order. What is not installed is passed over.
PRELOADED = (
    "onecurve.launch.forkserver_exit",
    "hydra",
    "lightning.pytorch",
    "torchvision",
    "torch.distributed.pipelining",
    "onecurve.run.fit",
)


def warm_up() -> None:
    """Start the server, so that its imports overlap with what the parent does meanwhile.

    It only imports: a started thread pool or a touched GPU would not survive the fork.
    """
    # A search has imported it, and its ranks will.
    search = [name for name in ("optuna",) if name in sys.modules]
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *search])
    forkserver.ensure_running()
