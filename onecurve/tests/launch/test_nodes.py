"""Several nodes are one run, with one directory and the curve of one node; torchrun starts them.

With network namespaces each has an address of its own as well.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Cli, one_of_a_kind
from nodes import (
    TRAIN,
    Start,
    StartBy,
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


def elastic(_: int, port: int) -> dict[str, str]:
    return elastic_pod(port)


def task_of_slurm(number: int, port: int) -> dict[str, str]:
    """What Slurm tells a task, of which each node has one."""
    step = {"ID": "0", "NUM_TASKS": "2", "NUM_NODES": "2", "TASKS_PER_NODE": "1(x2)"}
    told = {f"SLURM_STEP_{name}": value for name, value in step.items()}
    told |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "1", "SLURM_LOCALID": "0"}
    told |= {"SLURM_NTASKS": "2", "SLURM_NNODES": "2", "MASTER_PORT": str(port)}
    return told | {"SLURM_PROCID": str(number), "SLURM_NODEID": str(number)}


# What stands before train.py, what each node is told, and under which strategy.
WAYS_IN: dict[str, tuple[tuple[str, ...], Callable[[int, int], dict[str, str]], str]] = {
    "torchrun": ((*TORCHRUN, *BY_HAND, "--master-port={port}"), lambda *_: {}, "ddp"),
    "a PyTorchJob": ((), pod_of_torch, "ddp"),
    "a PyTorchJob, torchrun": (TORCHRUN, pod_of_torch, "fsdp"),
    "a TrainJob": ((), pod, "fsdp"),
    "a TrainJob, torchrun": (TORCHRUN, pod, "pipeline"),
    "an elastic PyTorchJob": ((), elastic, "pipeline"),
    "an elastic PyTorchJob, torchrun": (TORCHRUN, elastic, "ddp"),
    "srun": ((), task_of_slurm, "fsdp"),
    "srun bash -c": (("bash", "-c", '"$0" "$@"; exit $?', PYTHON), task_of_slurm, "pipeline"),
}


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize("way", one_of_a_kind(WAYS_IN, kept=["an elastic PyTorchJob"]))
def test_two_nodes_are_one_run_however_they_are_started(
    start: Start, start_by: StartBy, trained: Cli, tmp_path: Path, way: str
) -> None:
    before, told, strategy = WAYS_IN[way]
    typed, port = (*TRAIN[:-1], f"strategy={strategy}"), free_port()

    def node(number: int) -> Command | subprocess.Popen[str]:
        if not before:
            return start(*typed, **told(number, port))
        program = [word.format(number=number, port=port) for word in before]
        variables = [f"{name}={value}" for name, value in told(number, port).items()]
        return start_by("env", *variables, *program, str(ROOT / "train.py"), *typed)

    # Where nodes have numbers, the second comes first, and yet the first has rank 0.
    second = node(1)
    said = finish(node(0), second)
    assert sorted("Training finished" in out for out, _ in said) == [False, True]
    assert told is elastic or "Training finished" in said[0][0]
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)


@pytest.mark.compares
@pytest.mark.long
@pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("ip") is None
    or subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode,
    reason="network namespaces need root, `ip` and a kernel that lets it make them",
)
def test_two_nodes_with_addresses_of_their_own(
    start_by: StartBy, trained: Cli, tmp_path: Path
) -> None:
    """Two connected network namespaces; on both the machine's name resolves to loopback."""
    names = [f"node{os.getpid()}{side}" for side in "ab"]
    torchrun = (*TORCHRUN, "--nnodes=2", "--nproc-per-node=1")
    torchrun += ("--master-addr=10.231.77.1", "--master-port=29500")
    # The name of the machine is that of loopback on both.
    train = ("env", "GLOO_SOCKET_IFNAME=veth0", *torchrun)
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ends = [arguments for name in names for arguments in ("name", "veth0", "netns", name)]
        ip("link", "add", *ends[:4], "type", "veth", "peer", *ends[4:])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "addr", "add", f"10.231.77.{number}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")
        nodes = [
            start_by(
                *("ip", "netns", "exec", name, *train, f"--node-rank={number}"),
                *(str(ROOT / "train.py"), *TRAIN),
            )
            for number, name in enumerate(names)
        ]
        finish(*nodes)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
