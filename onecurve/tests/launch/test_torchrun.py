"""Ranks that torchrun or srun has started are one run; contradicting settings are rejected."""

import time
from pathlib import Path

import pytest
import torch
from conftest import Cli, Refused
from lightning.pytorch import Callback, Trainer
from nodes import TRAIN, Start, finish, free_port, has_the_curve_of_one_node, one_run

from onecurve.launch.context import Attempt, Members
from onecurve.launch.meeting import agree
from onecurve.machine import Ranks


class Slow(Callback):
    """Leaves time for nodes to go and come; makes a file for each step, with its ranks' number."""

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if trainer.is_global_zero:
            Path(f"step-{trainer.global_step}-of-{trainer.world_size}").touch()
        time.sleep(0.2)


@pytest.mark.compares
@pytest.mark.slow
def test_srun(start: Start, trained: Cli, tmp_path: Path) -> None:
    """With the variables of `srun bash -c ...` for two tasks on one node."""
    task = {"SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_STEP_ID": "0"}
    task |= {"SLURM_JOB_ID": "1", "SLURM_NODEID": "0", "SLURM_NODELIST": "localhost"}
    task |= {"SLURM_JOB_NAME": "bash", "MASTER_PORT": str(free_port())}
    ranks = [start(*TRAIN, SLURM_PROCID=rank, SLURM_LOCALID=rank, **task) for rank in ("0", "1")]
    said = finish(*ranks)
    assert said[1] == ("", "")
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)


def test_restarted_ranks_resume_the_run_of_their_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a node has come or left, which torchrun does not count as a restart."""
    ranks = Ranks(0, 0, 1, 1, "torchrun")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "attempt_0/0/error.json"))
    first, second = tmp_path / "first", tmp_path / "second"
    assert agree(Members(), ranks, first, None) == (first, Attempt())
    assert agree(Members(), ranks, second, None) == (first, Attempt(1))
    file = first / "checkpoints" / "last.ckpt"
    file.parent.mkdir(parents=True)
    torch.save({}, file)
    assert agree(Members(), ranks, second, None) == (first, Attempt(1, str(file)))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert agree(Members(), ranks, second, None) == (first, Attempt(2, str(file)))


# What torchrun or srun tells a process, what is typed, and words that the line must have.
REFUSED = {
    "single": ("torchrun", "strategy=single", "strategy=single … strategy=ddp"),
    "devices": ("torchrun", "strategy=ddp trainer.devices=3", "trainer.devices=3 … auto"),
    "nodes": (
        *("torchrun", "strategy=ddp trainer.num_nodes=2"),
        "trainer.num_nodes=2 … use trainer.num_nodes=auto",
    ),
    "sweep": ("torchrun", "-m strategy=ddp seed=1,2", "-m: … without torchrun"),
    "srun": ("srun", "strategy=single", "srun has started 2"),
    "uneven": ("uneven", "strategy=ddp", "3 ranks, 2 of them here … --ntasks-per-node"),
    "pods": ("pod", "strategy=ddp trainer.num_nodes=1", "PET_NNODES=2 … trainer.num_nodes=auto"),
    "one process": ("pod", "strategy=single", "PET_NNODES=2 … strategy=ddp … PET_NNODES=1"),
    "more devices": ("pod", "strategy=ddp trainer.devices=2", "PET_NPROC_PER_NODE=1 … auto"),
    "no number": ("rank", "strategy=ddp", "RANK=abc: must be a whole number from 0 … unset RANK"),
    "a lone variable": ("lone", "", "RANK=abc: must be a whole number from 0 … unset RANK"),
    "no world": ("world", "", "WORLD_SIZE=two: must be a whole number from 1 … unset WORLD_SIZE"),
    "no port": ("port", "strategy=ddp", "MASTER_PORT=abc: must be a … unset MASTER_PORT"),
    "no rank": ("none here", "strategy=ddp", "LOCAL_WORLD_SIZE=0: must be a whole number from 1"),
    "no task": ("two", "strategy=ddp", "SLURM_NTASKS=two: must be … unset SLURM_NTASKS"),
    "no interface": ("interface", "strategy=ddp", "GLOO_SOCKET_IFNAME=nope0 … use one of lo"),
    "sweep of pods": ("pod", "-m strategy=ddp seed=1,2", "-m: PET_NNODES=2"),
}
TOLD = {
    "torchrun": "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2",
    "srun": "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2",
    "uneven": "SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=2 "
    "SLURM_STEP_TASKS_PER_NODE=2,1",
    "rank": "RANK=abc LOCAL_RANK=0",
    "lone": "RANK=abc",
    "world": "RANK=0 WORLD_SIZE=two",
    "port": "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_PORT=abc",
    "none here": "RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=0",
    "two": "SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_NTASKS=two",
    "interface": "GLOO_SOCKET_IFNAME=nope0",
    "pod": "PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_RDZV_ENDPOINT=here:1",
}


@pytest.mark.parametrize("case", REFUSED)
def test_ranks_that_contradict_the_configuration_are_rejected(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    starter, typed, words = REFUSED[case]
    for told in TOLD[starter].split():
        monkeypatch.setenv(*told.split("="))
    line = refused("train.py", *typed.split())
    for part in words.split(" … "):
        assert part in line
    assert list(tmp_path.iterdir()) == []
