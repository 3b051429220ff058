"""One command in a process of its own, forked from one that has imported everything."""

import os
import resource
import runpy
import shutil
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import NoReturn

SECONDS_AT_MOST = 60
# A number that is too large must not take this machine's memory: it gets no more than that.
BYTES_AT_MOST = 16 << 30


@dataclass
class Done:
    """What came of a command."""

    status: int | None
    """Its exit status; None if it had to be ended."""
    out: str
    err: str
    left: list[str]
    """What it left in its folder, which was empty before."""


def run(script: Path, arguments: list[str], folder: Path) -> Done:
    """`python SCRIPT ARGUMENTS` in an empty folder."""
    assert not list(folder.iterdir())
    outside = folder.with_name(f"{folder.name}-output")
    outside.mkdir(exist_ok=True)
    pid = os.fork()
    if pid == 0:
        _be_the_command(script, arguments, folder, outside)
    status = _wait(pid)
    out, err = (
        (outside / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err")
    )
    return Done(
        status, out, err, sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    )


def empty(folder: Path) -> None:
    """Remove what a command has left."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _wait(pid: int) -> int | None:
    deadline = time.monotonic() + SECONDS_AT_MOST
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _be_the_command(script: Path, arguments: list[str], folder: Path, outside: Path) -> NoReturn:
    """Let this process, which was forked, be that command, and end as it does."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_AS, (BYTES_AT_MOST, BYTES_AT_MOST))
        for descriptor, name in ((1, "out"), (2, "err")):
            file = os.open(outside / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(file, descriptor)
            os.close(file)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        # The server of this process's parent serves it as well.
        forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None
        sys.argv = [str(script), *arguments]
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):  # the disk may be full
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
