"""What a shell, a scheduler or a user's own data bring along that nobody typed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from onecurve import machine
from onecurve.errors import UserError
from onecurve.strategies.loader import shard

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


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


class Own(DataLoader[int]):
    pass


NUMBERS = TensorDataset(torch.arange(8))
LOADERS = {
    "Stream, an IterableDataset,": DataLoader(Stream(), batch_size=2),
    "Own, a loader of its own,": Own(range(8), batch_size=2),  # type: ignore[arg-type]
    "a loader with its own WeightedRandomSampler": DataLoader(
        NUMBERS, batch_size=2, sampler=WeightedRandomSampler([1.0] * 8, 8)
    ),
}


@pytest.mark.parametrize("words", LOADERS)
def test_what_cannot_be_shared_is_named_with_a_way_out(words: str) -> None:
    with pytest.raises(UserError) as refused:
        shard(LOADERS[words], rank=0, num_replicas=2, seed=0, training=True)
    assert str(refused.value).startswith(f"strategy: {words} cannot be shared by 2 ranks; ")
    assert "read by index, or use strategy=single" in str(refused.value)
