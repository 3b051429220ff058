"""Every way in, under every strategy of several ranks: one run, with the curve of one process.

Two nodes are two commands here, each told what its surroundings would tell it: torchrun, Kubeflow's
PyTorchJob and TrainJob, or Slurm. Where nodes are numbered the second is started first, and yet the
first must have rank 0. (`make test-slurm` has a real Slurm of two nodes.)

    python benchmarks/ways_in.py [STRATEGY ...]

A cell is the largest relative difference of the per-step `train/loss` from that of
`strategy=single`, in float64. Exit status 1 if one is above its limit, or if a run went otherwise.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from baked import PROJECT, column, folder_for_runs, train

from onecurve.testing.runs import largest_difference

LIMIT = 1e-11
SECONDS_AT_MOST = 300
STRATEGIES = ("ddp", "fsdp", "pipeline")
TASK = (
    "model=mlp",
    "data.image_size=8",
    "data.batch_size=64",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=10",
    "trainer.precision=64-true",
    "callbacks=[checkpoint]",
    "logger=csv",
)
PYTHON = (sys.executable,)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
# What would tell a command of this machine something else.
TELLING = ("RANK", "LOCAL_", "WORLD_", "MASTER_", "SLURM_", "PET_", "TORCHELASTIC_", "GROUP_")


class Node(NamedTuple):
    """A command on one of two nodes."""

    starts: tuple[str, ...]
    """What stands before train.py."""
    told: dict[str, str] = {}  # noqa: RUF012
    typed: tuple[str, ...] = ()


class WayIn(NamedTuple):
    """How a run on two nodes is started."""

    node: Callable[[int, int], Node]
    """Of the number of a node, and of a free port."""
    numbers: bool = True
    """Whether the surroundings say which node is the first."""


def torchrun_by_hand(number: int, port: int) -> Node:
    """The same command is typed on both, with a number."""
    meets = ("--nnodes=2", "--nproc-per-node=1", f"--node-rank={number}")
    return Node((*TORCHRUN, *meets, "--master-addr=localhost", f"--master-port={port}"))


def train_job(number: int, port: int) -> dict[str, str]:
    """What Kubeflow Trainer's version 2 tells a pod."""
    told = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(number)}
    return told | {"PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": str(port)}


def pytorch_job(number: int, port: int) -> dict[str, str]:
    """What the training operator tells a pod of a job that has a Master."""
    told = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    return told | {"WORLD_SIZE": "2", "RANK": str(number)} | train_job(number, port)


def elastic_job(_number: int, port: int) -> dict[str, str]:
    """What it tells a pod of an elastic job: all the same."""
    told = {"PET_RDZV_ENDPOINT": f"localhost:{port}", "PET_RDZV_BACKEND": "c10d"}
    return told | {"PET_NNODES": "1:2", "PET_NPROC_PER_NODE": "1", "PET_RDZV_ID": "job"}


def srun(number: int, port: int) -> dict[str, str]:
    """What Slurm tells a task, of which each node has one."""
    step = {"NUM_TASKS": "2", "NUM_NODES": "2", "TASKS_PER_NODE": "1(x2)", "NODELIST": "localhost"}
    told = {f"SLURM_STEP_{name}": value for name, value in step.items()}
    told |= {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}
    told |= {"SLURM_PROCID": str(number), "SLURM_NODEID": str(number), "SLURM_LOCALID": "0"}
    return told | {"MASTER_PORT": str(port)}


WAYS = {
    "plain, torchrun": WayIn(torchrun_by_hand),
    "PyTorchJob, python": WayIn(lambda *place: Node(PYTHON, pytorch_job(*place))),
    "PyTorchJob, torchrun": WayIn(lambda *place: Node(TORCHRUN, pytorch_job(*place))),
    "elastic PyTorchJob, python": WayIn(
        lambda *place: Node(PYTHON, elastic_job(*place), ("trainer.devices=1",)), numbers=False
    ),
    "elastic PyTorchJob, torchrun": WayIn(
        lambda *place: Node(TORCHRUN, elastic_job(*place)), numbers=False
    ),
    "TrainJob, python": WayIn(lambda *place: Node(PYTHON, train_job(*place))),
    "TrainJob, torchrun": WayIn(lambda *place: Node(TORCHRUN, train_job(*place))),
    "Slurm, srun python": WayIn(lambda *place: Node(PYTHON, srun(*place))),
    "Slurm, srun bash -c python": WayIn(
        lambda *place: Node(
            ("bash", "-c", '"$0" "$@"; exit $?', *PYTHON), srun(*place) | {"SLURM_JOB_NAME": "bash"}
        )
    ),
}


def run_on_two_nodes(way: WayIn, strategy: str, folder: Path) -> Path:
    """The run directory.

    Raises:
        SystemExit: If it is not one run that the first node shows; with what the nodes printed.
    """
    folder.mkdir()
    with socket.create_server(("localhost", 0)) as server:
        port = int(server.getsockname()[1])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(TELLING)}
    nodes = {}
    for number in (1, 0):
        starts, told, typed = way.node(number, port)
        nodes[number] = subprocess.Popen(
            [*starts, str(PROJECT / "train.py"), *TASK, f"strategy={strategy}", *typed],
            cwd=folder,
            env={**kept, "PROJECT_ROOT": str(folder), "OMP_NUM_THREADS": "1", **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    said = {number: node.communicate(timeout=SECONDS_AT_MOST)[0] for number, node in nodes.items()}
    runs = list(folder.glob("runs/*/*"))
    shown = {number for number, text in said.items() if "Training finished" in text}
    if len(runs) != 1 or len(shown) != 1 or (way.numbers and shown != {0}):
        sys.exit("\n\n".join(f"node {number}:\n{text}" for number, text in said.items()))
    return runs[0]


def main(*strategies: str) -> int:
    """Print the table, and return the exit status."""
    chosen = strategies or STRATEGIES
    with folder_for_runs() as folder:
        single = column(train(*TASK, "strategy=single"), "train/loss")
        print("".join([f"{'':30}", *(f"{name:>12}" for name in chosen)]), flush=True)
        worst = 0.0
        for name, way in WAYS.items():
            cells = []
            for strategy in chosen:
                run = run_on_two_nodes(way, strategy, folder / f"{name} {strategy}")
                cells.append(largest_difference(single, column(run, "train/loss")))
            print("".join([f"{name:30}", *(f"{cell:12.1e}" for cell in cells)]), flush=True)
            worst = max(worst, *cells)
    print(f"\nthe worst: {worst:.1e}, limit {LIMIT:.0e}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
