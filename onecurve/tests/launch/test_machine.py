"""Environment variables of Slurm that describe ranks and nodes."""

import os
import subprocess
import sys

import pytest
from lightning.pytorch.plugins.environments import TorchElasticEnvironment

from onecurve import machine
from onecurve.launch import addresses

# The last of four tasks on two nodes, as srun tells it.
SRUN = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0"}
SRUN |= {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_NAME": "train.py"}
SRUN |= {"SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}

# What is different, and how many ranks are here; None for no ranks.
TASKS: dict[str, tuple[dict[str, str], int | None]] = {
    "srun": ({}, 2),
    "as many nowhere": ({"SLURM_STEP_TASKS_PER_NODE": "3,1"}, 1),
    "nothing of nodes": ({"SLURM_STEP_TASKS_PER_NODE": ""}, 2),
    "of a larger job": ({"SLURM_NTASKS": "64", "SLURM_NNODES": "8"}, 2),
    "srun in salloc": ({"SLURM_JOB_NAME": "interactive", "SLURM_PTY_PORT": "40101"}, 2),
    "one task": ({"SLURM_STEP_NUM_TASKS": "1"}, None),
    "a batch script": ({"SLURM_STEP_ID": "", "SLURM_PROCID": "0"}, None),
    "salloc's shell": ({"SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"}, None),
}


@pytest.mark.parametrize("case", TASKS)
def test_a_task_of_srun_is_a_rank(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    different, here = TASKS[case]
    for name, value in {**SRUN, **different}.items():
        monkeypatch.setenv(name, value)
    ranks = machine.ranks_around()
    told = ranks and (ranks.rank, ranks.local_rank, ranks.world_size, ranks.on_this_node)
    assert told == (here and (3, 1, 4, here))


def test_a_command_in_a_terminal_of_srun_starts_the_ranks() -> None:
    """With the variables of `srun --pty bash`, whose first task has a terminal."""
    code = "from onecurve import machine; print(machine.ranks_around() is None)"
    parent, child = os.openpty()
    done = subprocess.run(
        ["setsid", "--ctty", sys.executable, "-c", code], check=True, timeout=60, text=True,
        env={**os.environ, **SRUN, "SLURM_PTY_PORT": "40101"}, stdin=child, stdout=subprocess.PIPE,
    )  # fmt: skip
    os.close(parent)
    os.close(child)
    assert done.stdout == "True\n"


OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
OF_TORCHRUN += ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")


def test_ranks_of_srun_meet_on_the_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning, which ignores a job with the name "bash", is told of them, too."""
    told = {"SLURM_STEP_NODELIST": "node[07-09,12],login", "SLURM_JOB_ID": "710042"}
    for name, value in {**SRUN, **told, "SLURM_JOB_NAME": "bash"}.items():
        monkeypatch.setenv(name, value)
    ranks = machine.ranks_around()
    assert ranks is not None
    with machine.unchanged_environment(OF_TORCHRUN):
        assert addresses.main_address(ranks) == ("node07", 15042)
        assert machine.ranks_around() == ranks
        environment = TorchElasticEnvironment()
        assert TorchElasticEnvironment.detect()
        assert (environment.global_rank(), environment.local_rank()) == (3, 1)
        assert (environment.main_address, environment.main_port) == ("node07", 15042)
