"""Without forkserver and POSIX's modules and signals: one process trains, others say so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, TINY, run_directories

LIBRARY = Path(__file__).parents[2]
SCRIPT = """
import onecurve

if __name__ == "__main__":
    onecurve.launch(print, devices=2)
"""


def run(folder: Path, script: str | Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    places = [LIBRARY / "tests/no_posix", LIBRARY / "src", ROOT]
    variables = {"PYTHONPATH": os.pathsep.join(map(str, places)), "PROJECT_ROOT": str(folder)}
    return subprocess.run(
        [sys.executable, str(ROOT / script), *arguments], cwd=folder, capture_output=True,
        env={**os.environ, **variables, "OMP_NUM_THREADS": "1"}, text=True,
    )  # fmt: skip


@pytest.mark.long
def test_single_and_dp_train(tmp_path: Path) -> None:
    done = run(
        tmp_path, "train.py", *TINY, "-m", "strategy=single,dp", "trainer.max_epochs=1",
        "callbacks=[checkpoint,device_stats,timer]",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert len(run_directories(tmp_path)) == 2


def test_several_processes_are_refused_in_a_line(tmp_path: Path) -> None:
    done = run(tmp_path, "train.py", *TINY, "strategy=ddp")
    assert (done.returncode, list(tmp_path.iterdir())) == (2, []), done.stderr
    assert done.stderr == (
        "error: strategy=ddp: starts its processes by forkserver, which this system does not have; "
        "use strategy=single or strategy=dp, or Linux, macOS or WSL\n"
    )
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run(tmp_path, script)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "UserError: several processes are started by forkserver, which this system does not have; "
        "use one, or Linux, macOS or WSL"
    )
