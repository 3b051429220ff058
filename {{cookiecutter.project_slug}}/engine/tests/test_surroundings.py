"""What a shell, or a scheduler, brings along that nobody typed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onecurve import machine

# As Slurm writes it, and how many ranks that are here.
PER_NODE = {"2": 2, "2(x2)": 2, "2(x2),1": 2, "": 2, "two": 2, "4": 4}


@pytest.mark.parametrize("written", PER_NODE)
def test_ranks_of_a_node_are_understood_as_slurm_writes_them(
    monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    told = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "run"}
    for name, value in {**told, "SLURM_NTASKS_PER_NODE": written}.items():
        monkeypatch.setenv(name, value)
    ranks = machine.ranks_around()
    assert ranks is not None
    assert ranks.on_this_node == PER_NODE[written]


def test_a_folder_with_a_long_name_for_temporary_files_keeps_no_ranks_from_starting(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    code = (
        "from multiprocessing import get_context\n"
        "from onecurve.launch import forkserver\n"
        "forkserver.PRELOADED = ()\n"
        "if __name__ == '__main__':\n"
        "    forkserver.warm_up()\n"
        "    rank = get_context('forkserver').Process(target=print, args=('a rank',))\n"
        "    rank.start()\n"
        "    rank.join()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "a rank\n"), done.stderr
    assert list(folder.iterdir()) == []
