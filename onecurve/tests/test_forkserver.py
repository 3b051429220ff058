"""The server that ranks are forked from ignores Ctrl-C while it imports for seconds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import one_of_a_kind

PARENT = """
import multiprocessing, signal, sys, time
from onecurve.launch.forkserver import warm_up

def heard():
    sys.exit(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))

if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda number, frame: print("heard", flush=True))
    warm_up()
    print("started", flush=True)
    time.sleep(float(sys.argv[1]) + 0.2)
    rank = multiprocessing.get_context("forkserver").Process(target=heard)
    rank.start()
    rank.join()
    print("a rank is deaf to it" if rank.exitcode else "a rank hears it")
"""


@pytest.mark.parametrize("seconds", one_of_a_kind([0.0, 0.3, 1.5], kept=[0.3]))
def test_the_server_ignores_ctrl_c(seconds: float, tmp_path: Path) -> None:
    """Otherwise it would print a traceback from its imports."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, str(script), str(seconds)], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as command:  # fmt: skip
        assert command.stdout
        assert command.stdout.readline() == "started\n"
        time.sleep(seconds)
        os.killpg(command.pid, signal.SIGINT)
        printed, said = command.communicate(timeout=60)
    assert (command.returncode, said) == (0, "")
    assert printed == "heard\na rank hears it\n"


UNBORN = """
import multiprocessing, os, sys
from multiprocessing import synchronize
from onecurve.launch.forkserver import warm_up

class Absent:
    def __reduce__(self):
        return open, ("/not/there",)

if __name__ == "__main__":
    warm_up()
    context = multiprocessing.get_context("forkserver")
    for given in (context.Lock(), Absent()):
        if isinstance(given, synchronize.Lock):
            synchronize.SemLock._cleanup(given._semlock.name)  # as where this command ends
        rank = context.Process(target=print, args=(given,))
        rank.start()
        rank.join()
        print(rank.exitcode != 0, flush=True)
        print("the next", file=sys.stderr, flush=True)
    sys.stderr.close()
    os._exit(0)  # there is no lock to clean up any more
"""


@pytest.mark.long
def test_a_rank_of_a_stopped_command_prints_no_error(tmp_path: Path) -> None:
    """Any other error at its start is shown."""
    script = tmp_path / "parent.py"
    script.write_text(UNBORN)
    done = subprocess.run([sys.executable, str(script)], text=True, capture_output=True, timeout=60)
    assert done.stdout == "True\nTrue\n", done.stderr
    ended, absent, _ = done.stderr.split("the next\n")
    assert ended == ""
    assert "/not/there" in absent
