"""Environment variables of shells and schedulers that describe ranks and nodes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from omegaconf import OmegaConf

from onecurve import machine
from onecurve.launch import addresses

Told = dict[str, str | None]

# The last of four tasks on two nodes, as srun tells it.
SRUN: Told = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0"}
SRUN |= {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_NAME": "train.py"}
SRUN |= {"SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}

# What is different, None for what is not said, and how many ranks are here; None for no ranks.
TASKS: dict[str, tuple[Told, int | None]] = {
    "srun": ({}, 2),
    "as many nowhere": ({"SLURM_STEP_TASKS_PER_NODE": "3,1"}, 1),
    "nothing of nodes": ({"SLURM_STEP_TASKS_PER_NODE": None}, 2),
    "of a larger job": ({"SLURM_NTASKS": "64", "SLURM_NNODES": "8"}, 2),
    "srun bash -c": ({"SLURM_JOB_NAME": "bash"}, 2),
    "srun in salloc": ({"SLURM_JOB_NAME": "interactive", "SLURM_PTY_PORT": "40101"}, 2),
    "one task": ({"SLURM_STEP_NUM_TASKS": "1"}, None),
    "a batch script": ({"SLURM_STEP_ID": None, "SLURM_PROCID": "0"}, None),
    "the step of one": ({"SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0"}, None),
    "salloc's shell": ({"SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"}, None),
}


def tell(monkeypatch: pytest.MonkeyPatch, variables: Told) -> None:
    for name, value in variables.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize("case", TASKS)
def test_a_task_of_srun_is_a_rank(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    different, here = TASKS[case]
    tell(monkeypatch, {**SRUN, **different})
    ranks = machine.ranks_around()
    told = ranks and (ranks.rank, ranks.local_rank, ranks.world_size, ranks.on_this_node)
    assert told == (here and (3, 1, 4, here))


def test_a_command_in_a_terminal_of_srun_starts_the_ranks() -> None:
    """With the variables of `srun --pty bash`, whose first task has a terminal."""
    code = "from onecurve import machine; print(machine.ranks_around() is None)"
    parent, child = os.openpty()
    told = {name: value for name, value in SRUN.items() if value}
    done = subprocess.run(
        ["setsid", "--ctty", sys.executable, "-c", code], check=True, timeout=60, text=True,
        env={**os.environ, **told, "SLURM_PTY_PORT": "40101"}, stdin=child, stdout=subprocess.PIPE,
    )  # fmt: skip
    os.close(parent)
    os.close(child)
    assert done.stdout == "True\n"


def test_ranks_of_srun_meet_on_the_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning, which ignores a job with the name "bash", is told of them, too."""
    tell(monkeypatch, {**SRUN, "SLURM_JOB_NAME": "bash", "SLURM_JOB_ID": "710042"})
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[07-09,12],login")
    ranks = machine.ranks_around()
    assert ranks is not None
    with machine.unchanged_environment((*OF_TORCHRUN, "MASTER_ADDR", "MASTER_PORT")):
        assert addresses.main_address(ranks) == ("node07", 15042)
        assert machine.ranks_around() == ranks
        environment = TorchElasticEnvironment()
        assert TorchElasticEnvironment.detect()
        assert (environment.global_rank(), environment.local_rank()) == (3, 1)
        assert (environment.main_address, environment.main_port) == ("node07", 15042)


OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
OF_TORCHRUN += ("TORCHELASTIC_RUN_ID",)
TORCHRUN: Told = {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"}

# What is told, and how many nodes and devices `auto` are.
NODES: dict[str, tuple[Told, int, int]] = {
    "nothing": ({}, 1, 2),
    "a pod": ({"PET_NNODES": "3", "PET_NPROC_PER_NODE": "4"}, 3, 4),
    "an elastic pod": ({"PET_NNODES": "1:2", "PET_NPROC_PER_NODE": "auto"}, 2, 2),
    "a PyTorchJob": ({"RANK": "1", "WORLD_SIZE": "2", "PET_NNODES": "2"}, 2, 2),
    "torchrun": ({**TORCHRUN, "WORLD_SIZE": "6"}, 2, 3),
    "torchrun with fewer": ({**TORCHRUN, "WORLD_SIZE": "3", "PET_NNODES": "1:2"}, 1, 3),
    "srun": (SRUN, 2, 2),
}


@pytest.mark.parametrize("case", NODES)
def test_nodes_and_devices_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    told, nodes, devices = NODES[case]
    tell(monkeypatch, told)
    trainer = OmegaConf.create({"accelerator": "cpu", "devices": "auto", "num_nodes": "auto"})
    assert machine.num_nodes(trainer) == nodes
    assert machine.local_devices(trainer, one_device=False) == devices
    trainer.num_nodes = 5
    assert machine.num_nodes(trainer) == 5


STARTS_A_RANK = """
from multiprocessing import get_context
from onecurve.launch import forkserver

forkserver.PRELOADED = ()
if __name__ == "__main__":
    forkserver.warm_up()
    rank = get_context("forkserver").Process(target=print, args=("a rank",))
    rank.start()
    rank.join()
"""


def test_ranks_start_even_if_the_path_of_tmpdir_is_long(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", STARTS_A_RANK], capture_output=True, text=True, timeout=60,
        env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "a rank\n"), done.stderr
    assert list(folder.iterdir()) == []
