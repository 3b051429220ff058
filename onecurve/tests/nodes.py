"""What tests of several nodes share: how nodes are started and looked at, and what must be so.

A node is a `python train.py` of its own here, with its own process tree.
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from conftest import FLOAT64, ROUNDING, TINY, Cli, column, largest_difference, run_directories
from processes import Command, nothing_stays_of, session

TRAIN = (*TINY, FLOAT64, "trainer.limit_train_batches=6", "strategy=ddp")
# Two nodes of one process each are the world of the reference run: two processes on one node.
NODE = ("trainer.num_nodes=2", "trainer.devices=1")
SLOW_EPOCHS = ("callbacks=[progress]", "trainer.max_epochs=100000")

Start = Callable[..., Command]
StartBy = Callable[..., subprocess.Popen[str]]
CAN_MOUNT = not subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


def two_nodes(start: Start, *typed: str) -> list[Command]:
    """Two commands that are one run, at a place of their own."""
    place = f"launch.rendezvous=localhost:{free_port()}"
    return [start(*TRAIN, *NODE, place, *typed) for _ in range(2)]


def finish(*processes: Command | subprocess.Popen[str], status: int = 0) -> list[tuple[str, str]]:
    """Wait for commands that must all end with a status, and leave nothing running."""
    said = [process.communicate(timeout=120) for process in processes]
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


def has_the_curve_of_one_node(run: Path, trained: Cli) -> bool:
    single = trained(*TRAIN[len(TINY) :], "trainer.devices=2").run
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["status"] == "finished"
    assert metrics["world_size"] == 2
    names = ("train/loss", "val/loss", "test/acc")
    return all(
        largest_difference(column(single, name), column(run, name)) <= ROUNDING for name in names
    )


def training_rank(nodes: list[Command], folder: Path, rank: int) -> int:
    """PID of a rank, once it trains: the process that has the rank's log open."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert [node.poll() for node in nodes] == [None, None]
        time.sleep(0.2)
        if not any("epoch" in path.read_text() for path in folder.glob("runs/*/*/metrics.csv")):
            continue
        for row in [row for node in nodes for row in session(node.pid)]:
            pid = int(row.split()[0])
            files = [os.path.realpath(path) for path in Path(f"/proc/{pid}/fd").glob("*")]
            if any(file.endswith(f"logs/rank_{rank}.log") for file in files):
                return pid
    raise TimeoutError("no rank trains")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
