"""Commands in processes of their own, for what must not happen in the process of the tests."""

import itertools
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "project"
NUMBERS = itertools.count()
LISTENS = "0A"  # the state of a socket in /proc/net/tcp


class Command(subprocess.Popen[str]):
    """A script of the project that runs, in a session of its own.

    Args:
        folder: Where it runs. What it prints is kept beside that folder.
        script: Such as "train.py".
        arguments: What is typed after it.
        by: What is typed before it.
        environment: Variables to add to those of the tests.
    """

    def __init__(
        self,
        folder: Path,
        script: str,
        *arguments: str,
        by: Sequence[str] = (sys.executable,),
        **environment: str,
    ) -> None:
        prints = folder.parent / f"{folder.name}-{next(NUMBERS)}"
        self.out, self.err = Path(f"{prints}.out"), Path(f"{prints}.err")
        with self.out.open("w") as out, self.err.open("w") as err:
            super().__init__(
                [*by, str(PROJECT / script), *arguments],
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def communicate(self, timeout: float = 300) -> tuple[str, str]:  # type: ignore[override]
        """What it has printed, once it has ended."""
        self.wait(timeout)
        return self.out.read_text(), self.err.read_text()

    def wait_for_line(self, start: str) -> None:
        """Return once it has printed a line that starts so."""
        while not any(line.startswith(start) for line in self.out.read_text().splitlines()):
            assert self.poll() is None, self.err.read_text()
            time.sleep(0.02)


def in_terminal(
    folder: Path, *typed: str, prompt: str = "", answers: Sequence[str] = (), **environment: str
) -> tuple[int | None, str]:
    """Run train.py in a terminal, where each prompt gets the next answer.

    Returns:
        Its exit status, and what was shown.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, str(PROJECT / "train.py"), *typed],
        cwd=folder, env={**os.environ, **environment}, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    shown, left = b"", list(answers)
    deadline = time.monotonic() + 300
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


def end(process: Command) -> None:
    """End a process that leads a session, and all that still runs in it."""
    for row in session(process.pid):
        # Ranks end by themselves once their parent has.
        with suppress(ProcessLookupError):
            os.kill(int(row.split()[0]), signal.SIGKILL)
    process.kill()
    process.communicate()
