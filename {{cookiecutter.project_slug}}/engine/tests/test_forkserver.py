"""The server that ranks are forked from imports for seconds: Ctrl-C passes over it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.5])
def test_ctrl_c_passes_over_it(seconds: float, tmp_path: Path) -> None:
    """It would print where it was in its imports."""
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
