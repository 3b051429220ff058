"""Several nodes are one run, with one directory and the curve of one node; torchrun starts them."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Cli, one_of_a_kind
from nodes import (
    TRAIN,
    Start,
    elastic_pod,
    finish,
    free_port,
    has_the_curve_of_one_node,
    one_run,
    pod,
    pod_of_torch,
)
from processes import Command

PYTHON = sys.executable
TORCHRUN = (PYTHON, "-m", "torch.distributed.run")
BY_HAND = ("--nnodes=2", "--nproc-per-node=1", "--node-rank={number}", "--master-addr=localhost")


def task_of_slurm(number: int, port: int) -> dict[str, str]:
    """What Slurm tells a task, of which each node has one."""
    step = {"ID": "0", "NUM_TASKS": "2", "NUM_NODES": "2", "TASKS_PER_NODE": "1(x2)"}
    told = {f"SLURM_STEP_{name}": value for name, value in step.items()}
    told |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "1", "SLURM_LOCALID": "0"}
    told |= {"SLURM_NTASKS": "2", "SLURM_NNODES": "2", "MASTER_PORT": str(port)}
    return told | {"SLURM_PROCID": str(number), "SLURM_NODEID": str(number)}


def task_of_one_node(number: int, port: int) -> dict[str, str]:
    """What it tells each of two tasks of one node, as for `srun bash -c ...`."""
    told = {"SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_NODELIST": "localhost"}
    told |= {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_LOCALID": str(number)}
    return task_of_slurm(number, port) | told | {"SLURM_JOB_NAME": "bash"}


# What stands before train.py, what each node is told, and under which strategy.
WAYS_IN: dict[str, tuple[tuple[str, ...], Callable[[int, int], dict[str, str]], str]] = {
    "torchrun": ((*TORCHRUN, *BY_HAND, "--master-port={port}"), lambda *_: {}, "ddp"),
    "a PyTorchJob": ((), pod_of_torch, "ddp"),
    "a TrainJob": ((), pod, "fsdp"),
    "a TrainJob, torchrun": (TORCHRUN, pod, "pipeline"),
    "an elastic PyTorchJob": ((), elastic_pod, "pipeline"),
    "srun": ((), task_of_slurm, "fsdp"),
    "srun on one node": ((), task_of_one_node, "ddp"),
    "srun bash -c": (("bash", "-c", '"$0" "$@"; exit $?', PYTHON), task_of_slurm, "pipeline"),
}
KEPT = ("an elastic PyTorchJob", "srun on one node")


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize("way", one_of_a_kind(WAYS_IN, kept=KEPT))
def test_two_nodes_are_one_run_however_they_are_started(
    start: Start, trained: Cli, tmp_path: Path, way: str
) -> None:
    before, told, strategy = WAYS_IN[way]
    typed, port = (*TRAIN[:-1], f"strategy={strategy}"), free_port()

    def node(number: int) -> Command:
        by = [word.format(number=number, port=port) for word in before] or [PYTHON]
        return start(*typed, by=by, **told(number, port))

    # Where nodes have numbers, the second comes first, and yet the first has rank 0.
    second = node(1)
    said = finish(node(0), second)
    assert sorted("Training finished" in out for out, _ in said) == [False, True]
    assert told is elastic_pod or "Training finished" in said[0][0]
    assert told is not task_of_one_node or said[1] == ("", "")
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)
