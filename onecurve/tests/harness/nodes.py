"""What tests of several nodes share: how nodes are started and looked at, and what must be so.

A node is a `python train.py` of its own here, which becomes torchrun by what Kubeflow tells a pod.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from conftest import FLOAT64, ROUNDING, TINY, Cli, column, largest_difference, run_directories
from processes import Command, nothing_stays_of

TRAIN = (*TINY, FLOAT64, "trainer.limit_train_batches=6", "strategy=ddp")

Start = Callable[..., Command]
CAN_MOUNT = not subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


def pod(number: int, port: int) -> dict[str, str]:
    """What Kubeflow's Trainer tells a pod of two: with one process each, as the reference has."""
    told = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(number)}
    return told | {"PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": str(port)}


def pod_of_torch(number: int, port: int) -> dict[str, str]:
    """What the Training Operator tells a pod of a job that has a Master."""
    told = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    return pod(number, port) | told | {"RANK": str(number)}


def elastic_pod(_: int, port: int) -> dict[str, str]:
    """What it tells every pod of an elastic job, of one or of two pods."""
    told = {"PET_NNODES": "1:2", "PET_NPROC_PER_NODE": "1", "PET_RDZV_BACKEND": "c10d"}
    return told | {"PET_RDZV_ENDPOINT": f"localhost:{port}", "PET_RDZV_ID": "job"}


def two_nodes(start: Start, *typed: str) -> list[Command]:
    """Two commands that are one run, the first with rank 0."""
    port = free_port()
    return [start(*TRAIN, *typed, **pod(number, port)) for number in (0, 1)]


def finish(*processes: Command, status: int = 0) -> list[tuple[str, str]]:
    """Wait for commands that must all end with a status, and leave nothing running."""
    said = [process.communicate(timeout=300) for process in processes]
    for process, (out, err) in zip(processes, said, strict=True):
        assert process.returncode == status, out + err
        assert nothing_stays_of(process.pid)
    return said


def one_run(folder: Path) -> Path:
    """The only run directory, which only one process may have made and recorded."""
    (run,) = run_directories(folder)
    assert [path.name for path in run.parent.iterdir()] == [run.name]
    assert (run / "logs/rank_1.log").exists()
    return run


def has_the_curve_of_one_node(run: Path, trained: Cli, *typed: str) -> bool:
    single = trained(*TRAIN[len(TINY) :], *typed, "trainer.devices=2").run
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["status"] == "finished"
    assert metrics["world_size"] == 2
    names = ("train/loss", "val/loss", "test/acc")
    return all(
        largest_difference(column(single, name), column(run, name)) <= ROUNDING for name in names
    )


def kill_node(node: Command) -> None:
    """As if it lost power: torchrun's agent and what it has started, with which its ranks end."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True)
    pairs = [line.split() for line in table.stdout.splitlines()]
    for pid in [node.pid, *(int(pid) for pid, parent in pairs if int(parent) == node.pid)]:
        os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
