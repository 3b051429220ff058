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
from pathlib import Path
from typing import NamedTuple

from baked import TRAIN, folder_for_runs, print_row, train

from onecurve.testing.runs import column, largest_difference

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
# What would tell a command of this machine something else.
TELLING = ("RANK", "LOCAL_", "WORLD_", "MASTER_", "SLURM_", "PET_", "TORCHELASTIC_", "GROUP_")

# What stands before train.py; here and below with the number of the node, and a free port.
PYTHON = (sys.executable,)
TORCHRUN = (*PYTHON, "-m", "torch.distributed.run")
BY_HAND = ("--nnodes=2", "--nproc-per-node=1", "--node-rank={number}", "--master-addr=localhost")
# What Kubeflow Trainer's version 2 tells a pod.
TRAIN_JOB = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "1",
    "PET_NODE_RANK": "{number}",
    "PET_MASTER_ADDR": "localhost",
    "PET_MASTER_PORT": "{port}",
}
# What the training operator tells a pod of a job that has a Master, and of an elastic job: there
# all the same.
MASTER = {"MASTER_ADDR": "localhost", "MASTER_PORT": "{port}", "WORLD_SIZE": "2"}
PYTORCH_JOB = {**MASTER, "RANK": "{number}", **TRAIN_JOB}
ELASTIC_JOB = {
    "PET_RDZV_ENDPOINT": "localhost:{port}",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ID": "job",
    "PET_NNODES": "1:2",
    "PET_NPROC_PER_NODE": "1",
}
# What Slurm tells a task, of which each node has one.
SLURM = {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_NNODES": "2",
    "SLURM_PROCID": "{number}",
    "SLURM_NODEID": "{number}",
    "SLURM_LOCALID": "0",
    "MASTER_PORT": "{port}",
}
IN_BASH = ("bash", "-c", '"$0" "$@"; exit $?', *PYTHON)


class WayIn(NamedTuple):
    """How a run on two nodes is started."""

    starts: tuple[str, ...]
    told: dict[str, str] = {}  # noqa: RUF012
    typed: tuple[str, ...] = ()
    is_numbered: bool = True
    """Whether the surroundings say which node is the first."""


WAYS = {
    "plain, torchrun": WayIn((*TORCHRUN, *BY_HAND, "--master-port={port}")),
    "PyTorchJob, python": WayIn(PYTHON, PYTORCH_JOB),
    "PyTorchJob, torchrun": WayIn(TORCHRUN, PYTORCH_JOB),
    "elastic PyTorchJob, python": WayIn(PYTHON, ELASTIC_JOB, ("trainer.devices=1",), False),
    "elastic PyTorchJob, torchrun": WayIn(TORCHRUN, ELASTIC_JOB, is_numbered=False),
    "TrainJob, python": WayIn(PYTHON, TRAIN_JOB),
    "TrainJob, torchrun": WayIn(TORCHRUN, TRAIN_JOB),
    "Slurm, srun python": WayIn(PYTHON, SLURM),
    "Slurm, srun bash -c python": WayIn(IN_BASH, {**SLURM, "SLURM_JOB_NAME": "bash"}),
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
        told = {name: value.format(number=number, port=port) for name, value in way.told.items()}
        starts = [word.format(number=number, port=port) for word in way.starts]
        nodes[number] = subprocess.Popen(
            [*starts, str(TRAIN), *TASK, f"strategy={strategy}", *way.typed],
            cwd=folder,
            env={**kept, "PROJECT_ROOT": str(folder), "OMP_NUM_THREADS": "1", **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    said = {number: node.communicate(timeout=SECONDS_AT_MOST)[0] for number, node in nodes.items()}
    runs = list(folder.glob("runs/*/*"))
    shown = {number for number, text in said.items() if "Training finished" in text}
    if len(runs) != 1 or len(shown) != 1 or (way.is_numbered and shown != {0}):
        sys.exit("\n\n".join(f"node {number}:\n{text}" for number, text in said.items()))
    return runs[0]


def main(*strategies: str) -> int:
    """Print the table, and return the exit status."""
    chosen = strategies or STRATEGIES
    worst = 0.0
    with folder_for_runs() as folder:
        single = column(train(*TASK, "strategy=single"), "train/loss")
        print_row("", *chosen, first=30)
        for name, way in WAYS.items():
            runs = [run_on_two_nodes(way, each, folder / f"{name} {each}") for each in chosen]
            cells = [largest_difference(single, column(run, "train/loss")) for run in runs]
            print_row(name, *(f"{cell:.1e}" for cell in cells), first=30)
            worst = max(worst, *cells)
    print(f"\nthe worst: {worst:.1e}, limit {LIMIT:.0e}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
