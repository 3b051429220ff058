"""Without forkserver and POSIX's modules and signals: one process trains, several are refused."""

import os
from pathlib import Path

import pytest
from conftest import TESTS, TINY, run_directories
from processes import Command


def run(folder: Path, *typed: str) -> tuple[int, str]:
    """The exit status and the errors of a training run."""
    path = os.pathsep.join([str(TESTS / "no_posix"), os.environ["PYTHONPATH"]])
    command = Command(folder, "train.py", *TINY, *typed, PYTHONPATH=path)
    _, err = command.communicate()
    return command.returncode, err


@pytest.mark.long
def test_single_and_dp_train(tmp_path: Path) -> None:
    shown = "callbacks=[checkpoint,device_stats,timer]"
    status, err = run(tmp_path, "-m", "strategy=single,dp", "trainer.max_epochs=1", shown)
    assert status == 0, err
    assert "Traceback" not in err
    assert len(run_directories(tmp_path)) == 2


def test_several_processes_are_refused_in_a_line(tmp_path: Path) -> None:
    assert run(tmp_path, "strategy=ddp") == (
        2,
        "error: strategy=ddp: starts its processes by forkserver, which this system does not have; "
        "use strategy=single or strategy=dp, or Linux, macOS or WSL\n",
    )
    assert list(tmp_path.iterdir()) == []
