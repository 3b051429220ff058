"""Commands in processes of their own, for what must not happen in the process of the tests.

Each is forked from the warm server that forks the ranks of the other tests, and so need not import
torch and Lightning first; nor need the server of its own ranks, which it forks from itself. All
else is as in a shell: a session, a folder, an environment and an output of its own.
"""

import itertools
import multiprocessing
import multiprocessing.util
import os
import pty
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from onecurve.launch.forkserver import end_with_the_parent, warm_up

# Not from `conftest`, which the process of a command would have to import, too.
PROJECT = Path(__file__).parents[1] / "project"
NUMBERS = itertools.count()
LISTENS = "0A"  # the state of a socket in /proc/net/tcp
SPAWN = multiprocessing.util.spawnv_passfds


class Command:
    """A script of the project that runs, with the methods of ``subprocess.Popen``.

    Args:
        folder: Where it runs. What it prints is kept beside that folder.
        script: Such as "train.py".
        arguments: What is typed after it.
        terminal: Where it prints instead: the name of a pseudo-terminal.
        environment: Variables to add to those of the tests.
    """

    def __init__(
        self,
        folder: Path,
        script: str,
        *arguments: str,
        terminal: str | None = None,
        **environment: str,
    ) -> None:
        prints = folder.parent / f"{folder.name}-{next(NUMBERS)}"
        self.stdout, self.stderr = Path(f"{prints}.out"), Path(f"{prints}.err")
        if terminal:
            self.stdout = self.stderr = Path(terminal)
        for file in (self.stdout, self.stderr):
            file.touch()
        warm_up()
        typed = [str(PROJECT / script), *arguments]
        variables = {**os.environ, **environment}
        self.process = ForkServerProcess(
            target=_become, args=(typed, folder, variables, self.stdout, self.stderr)
        )
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, or the negative number of the signal that ended it."""
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float) -> int:
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.process.name, timeout)
        return self.returncode

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        """What it has printed, once it has ended."""
        self.wait(timeout)
        return self.stdout.read_text(), self.stderr.read_text()

    def wait_for_line(self, start: str) -> None:
        """Return once it has printed a line that starts so."""
        while not any(line.startswith(start) for line in self.stdout.read_text().splitlines()):
            assert self.poll() is None, self.stderr.read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()


def in_terminal(
    folder: Path, *typed: str, prompt: str = "", answers: Sequence[str] = (), **environment: str
) -> tuple[int | None, str]:
    """Run train.py in a terminal, where each prompt gets the next answer.

    Returns:
        Its exit status, and what was shown.
    """
    ours, theirs = pty.openpty()
    process = Command(folder, "train.py", *typed, terminal=os.ttyname(theirs), **environment)
    shown, left = b"", list(answers)
    deadline = time.monotonic() + 120
    try:
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < deadline, shown.decode()
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 65536)
            if left and shown.count(prompt.encode()) > len(answers) - len(left):
                os.write(ours, left.pop(0).encode())
    finally:
        process.kill()
        os.close(theirs)
        os.close(ours)
    return process.returncode, shown.decode()


def session(leader: int) -> list[str]:
    """PID, state and command of what still runs in the session of a process."""
    listing = ["ps", "-s", str(leader), "-o", "pid=,stat=,args="]
    done = subprocess.run(listing, capture_output=True, text=True, check=False)
    return [row for row in done.stdout.splitlines() if row.split()[1][0] != "Z"]


def listens(leader: int) -> set[str]:
    """The addresses on which processes of a session listen; those of IPv6 as the kernel has it."""
    pids = [row.split()[0] for row in session(leader)]
    files = []
    for pid in pids:
        # Either may end meanwhile: the process, or what it has open.
        with suppress(FileNotFoundError):
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    files.append(os.readlink(file))
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = row.split()
            if words[3] == LISTENS and f"socket:[{words[9]}]" in files:
                address = words[1].partition(":")[0]
                is_short = len(address) == 8
                found.add(socket.inet_ntoa(bytes.fromhex(address)[::-1]) if is_short else address)
    return found


def nothing_stays_of(leader: int) -> bool:
    """Whether all of a session ends soon."""
    deadline = time.monotonic() + 20
    while session(leader) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not session(leader)


def end(process: Command | subprocess.Popen[str]) -> None:
    """End a process that leads a session, and all that still runs in it."""
    for row in session(process.pid):
        # Ranks end by themselves once their parent has.
        with suppress(ProcessLookupError):
            os.kill(int(row.split()[0]), signal.SIGKILL)
    process.kill()
    process.communicate()


def _become(
    typed: list[str], folder: Path, variables: dict[str, str], stdout: Path, stderr: Path
) -> None:
    os.setsid()
    end_with_the_parent()
    # A process of a forkserver would start others from one, too.
    multiprocessing.set_start_method(None, force=True)
    os.chdir(folder)
    # A terminal that the leader of a session opens for reading, too, is the session's: /dev/tty.
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(variables)
    # At once: what the script makes is not for its ranks.
    multiprocessing.util.spawnv_passfds = _fork_server
    warm_up()
    sys.argv = typed
    sys.path.insert(0, str(Path(typed[0]).parent))
    runpy.run_path(typed[0], run_name="__main__")


def _fork_server(program: str, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """As `multiprocessing.util.spawnv_passfds`, but a server of forks is a fork of this process."""
    if "multiprocessing.forkserver" not in arguments[-1]:
        return int(SPAWN(program, arguments, descriptors))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    pid = os.fork()
    if pid == 0:
        try:
            # The fork of a server's child unblocks signals.
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            first = 3
            for kept in [*sorted(descriptors), os.sysconf("SC_OPEN_MAX")]:
                os.closerange(first, kept)
                first = kept + 1
            exec(arguments[-1])
        finally:
            os._exit(0)
    return pid
