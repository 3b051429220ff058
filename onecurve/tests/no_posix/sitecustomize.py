"""Makes Python look as on Windows: modules, functions and signals that it has not are away."""

import multiprocessing.reduction
import os
import platform
import signal
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any

MODULES = ("fcntl", "grp", "multiprocessing.forkserver", "pwd", "resource", "termios")
SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT", "SIGKILL", "pthread_sigmask")
# Not register_at_fork, which torch asks of Linux; here the forkserver alone does.
CALLS = ("getuid", "sched_getaffinity", "sched_setaffinity", "setsid", "fork")


class Away:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


multiprocessing.reduction.HAVE_SEND_HANDLE = False  # what get_all_start_methods looks at
for name in MODULES:
    sys.modules.pop(name, None)
for place, names in ((os, CALLS), (signal, SIGNALS)):
    for name in names:
        if hasattr(place, name):
            delattr(place, name)
# Said of a POSIX system without fcntl; filelock has locks of Windows' own there.
warnings.filterwarnings("ignore", "only soft file lock is available")
sys.meta_path.insert(0, Away)  # type: ignore[arg-type]
with suppress(ImportError):  # comes with transformers, and would load Windows' certificates below
    import_module("truststore")
# What Lightning asks before it names a signal.
platform.system = lambda: "Windows"
WINDOWS = {getattr(signal, f"SIG{name}") for name in ("ABRT", "FPE", "ILL", "INT", "SEGV", "TERM")}
signal.valid_signals = lambda: WINDOWS
