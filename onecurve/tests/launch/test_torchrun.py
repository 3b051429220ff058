"""Settings that contradict what torchrun, srun or a pod has started are rejected in a line."""

from pathlib import Path

import pytest
from conftest import Refused

TORCHRUN = "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2"
POD = "PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_RDZV_ENDPOINT=here:1"
SRUN = "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2"
UNEVEN = "SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=2,1"
DDP = "strategy=ddp"

# What a process is told, what is typed, and what the line must say.
REFUSED = [
    (TORCHRUN, "strategy=single", "strategy=single … strategy=ddp"),
    (TORCHRUN, f"{DDP} trainer.devices=3", "trainer.devices=3 … auto"),
    (TORCHRUN, f"{DDP} trainer.num_nodes=2", "trainer.num_nodes=2 … use trainer.num_nodes=auto"),
    (TORCHRUN, f"-m {DDP} seed=1,2", "-m: … without torchrun"),
    (SRUN, "strategy=single", "srun has started 2"),
    (f"{SRUN} {UNEVEN}", DDP, "3 ranks, 2 of them here … --ntasks-per-node"),
    (POD, f"{DDP} trainer.num_nodes=1", "PET_NNODES=2 … trainer.num_nodes=auto"),
    (POD, "strategy=single", "PET_NNODES=2 … strategy=ddp … PET_NNODES=1"),
    (POD, f"{DDP} trainer.devices=2", "PET_NPROC_PER_NODE=1 … auto"),
    (POD, f"-m {DDP} seed=1,2", "-m: PET_NNODES=2"),
    ("RANK=abc LOCAL_RANK=0", DDP, "RANK=abc: must be a whole number from 0 … unset RANK"),
    (f"{TORCHRUN} MASTER_PORT=abc", DDP, "MASTER_PORT=abc: must be a … unset MASTER_PORT"),
    ("GLOO_SOCKET_IFNAME=nope0", DDP, "GLOO_SOCKET_IFNAME=nope0 … use one of lo"),
]


@pytest.mark.parametrize(("told", "typed", "says"), REFUSED)
def test_ranks_that_contradict_the_configuration_are_rejected(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    told: str, typed: str, says: str,
) -> None:  # fmt: skip
    for name, value in (word.split("=") for word in told.split()):
        monkeypatch.setenv(name, value)
    line = refused("train.py", *typed.split())
    assert [words for words in says.split(" … ") if words not in line] == [], line
    assert list(tmp_path.iterdir()) == []
