"""Without forkserver and POSIX's modules and signals: one process trains, others say so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, TINY, run_directories

LIBRARY = Path(__file__).parents[1]


def train(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    places = [LIBRARY / "tests/no_posix", LIBRARY / "src", ROOT]
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *TINY, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, places)),
            "PROJECT_ROOT": str(folder),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_single_and_dp_train(tmp_path: Path) -> None:
    done = train(
        tmp_path, "-m", "strategy=single,dp", "callbacks=[checkpoint,device_stats,timer]",
        "callbacks.device_stats.every_n_steps=5", "trainer.max_epochs=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert len(run_directories(tmp_path)) == 2


def test_several_processes_are_refused_in_a_line(tmp_path: Path) -> None:
    done = train(tmp_path, "strategy=ddp")
    assert (done.returncode, list(tmp_path.iterdir())) == (2, []), done.stderr
    assert done.stderr == (
        "error: strategy=ddp: starts its processes by forkserver, which this system does not have; "
        "use strategy=single or strategy=dp, or Linux, macOS or WSL\n"
    )


def test_a_script_is_refused_in_a_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import onecurve\n\n\ndef main():\n    pass\n\n\n"
        'if __name__ == "__main__":\n    onecurve.launch(main, devices=2)\n'
    )
    places = os.pathsep.join(map(str, [LIBRARY / "tests/no_posix", LIBRARY / "src"]))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "UserError: several processes are started by forkserver, which this system does not have; "
        "use one, or Linux, macOS or WSL"
    )
