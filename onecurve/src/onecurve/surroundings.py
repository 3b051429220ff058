"""What torchrun, srun and Kubeflow say of a run by environment variables; torch is not imported.

There are two kinds of surroundings. torchrun and srun start ranks, of which this process is one
(`ranks_around`). Kubeflow starts a pod for each node, in which this process starts the ranks
(`node_around`). Sources:
https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
https://www.kubeflow.org/docs/components/trainer/
"""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Slurm numbers the steps that srun did not start from here on: a batch script, salloc's shell.
FIRST_STEP_WITHOUT_SRUN = 0xFFFFFFF0
# What Lightning reads of ranks. With these it takes those of srun for torchrun's, and asks nothing
# of Slurm: it would pass over a job that is called "bash", and requeue jobs by itself.
OF_SRUN = "srun"


class Ranks(NamedTuple):
    """What this process is told about itself by torchrun or srun, which started it."""

    rank: int
    local_rank: int
    world_size: int
    on_this_node: int
    starter: str

    @property
    def nodes(self) -> int:
        """How many nodes they are on; as many are on each."""
        return max(1, self.world_size // self.on_this_node)


class Node(NamedTuple):
    """What this process, which starts the ranks of its node by itself, is told about the nodes."""

    nodes: int | None = None
    """How many there are; None where nobody says so."""
    number: int | None = None
    """Which of them this is, from 0."""
    devices: int | None = None
    """How many ranks it has."""


def ranks_around() -> Ranks | None:
    """The ranks of which this process is one; None if it was started by hand.

    torchelastic's own workers are ranks as well. A pod of a Kubeflow PyTorchJob is none: it has
    RANK but no LOCAL_RANK, and starts the ranks of its node by itself.
    """
    environment = os.environ
    if "RANK" in environment and "LOCAL_RANK" in environment:
        world = int(environment.get("WORLD_SIZE", "1"))
        here = int(environment.get("LOCAL_WORLD_SIZE", world))
        starter = "srun" if environment.get("TORCHELASTIC_RUN_ID") == OF_SRUN else "torchrun"
        return Ranks(int(environment["RANK"]), int(environment["LOCAL_RANK"]), world, here, starter)
    # One task needs no others.
    if not _is_task_of_srun(environment) or (world := _tasks(environment)) == 1:
        return None
    rank = int(environment["SLURM_PROCID"])
    here = _tasks_here(environment, world)
    return Ranks(rank, int(environment.get("SLURM_LOCALID", rank % here)), world, here, "srun")


def node_around() -> Node:
    """What Kubeflow says of this pod: a PyTorchJob with a Master or elastic, or a TrainJob.

    Of ``PET_NNODES=1:2`` of an elastic job these are the most.
    """
    names = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE")
    nodes, number, devices = (os.environ.get(name, "").rpartition(":")[2] for name in names)
    # "auto", "cpu" and "gpu" of torchrun's are what `trainer.devices=auto` finds out.
    return Node(*(int(each) if each.isdecimal() else None for each in (nodes, number, devices)))


def nodes_asked(config: "DictConfig") -> tuple[int, int]:
    """The fewest and the most nodes of a run whose ranks nobody else starts.

    Args:
        config: With `launch.nodes` and `trainer.num_nodes`; where neither is given, Kubeflow's
            PET_NNODES counts.
    """
    asked = config.launch.get("nodes")
    if asked is None:
        asked = config.trainer.num_nodes
    if asked == "auto":
        asked = os.environ.get("PET_NNODES") or 1
    smallest, _, largest = str(asked).rpartition(":")
    return int(smallest or largest), int(largest)


def node_rank(config: "DictConfig") -> int | None:
    """The number of this node: `launch.node_rank`, or Kubeflow's; None where torchrun numbers them.

    So it does where nodes may come and go.
    """
    smallest, largest = nodes_asked(config)
    typed = config.launch.get("node_rank", "auto")
    if smallest < largest or typed is None:
        return None
    return node_around().number if typed == "auto" else int(typed)


def first_host(hosts: str) -> str:
    """The first of hosts as Slurm lists them: of ``node[01-04,07],login`` that is node01."""
    return re.split(r"[,\s]", re.sub(r"\[(\d+)[^]]*\]", r"\1", hosts))[0]


def tell_lightning(ranks: Ranks) -> None:
    """Leave what srun says in the variables by which torchrun says it."""
    node = os.environ.get("SLURM_NODEID", str(ranks.rank // ranks.on_this_node))
    os.environ |= {
        "RANK": str(ranks.rank),
        "LOCAL_RANK": str(ranks.local_rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_WORLD_SIZE": str(ranks.on_this_node),
        "GROUP_RANK": node,
        "TORCHELASTIC_RUN_ID": OF_SRUN,
    }


def _is_task_of_srun(environment: Mapping[str, str]) -> bool:
    """Whether srun started this process as one of its tasks, and no person in a shell of Slurm's.

    Only the tasks of a step have its number. In `srun --pty bash` a person types, who has a
    terminal. What such a shell leaves in the environment of a further srun says nothing, nor does
    the name of the job: `srun bash -c ...` makes it "bash", and salloc "interactive".
    """
    step = environment.get("SLURM_STEP_ID", "")
    if "SLURM_PROCID" not in environment or not step.isdecimal():
        return False
    if int(step) >= FIRST_STEP_WITHOUT_SRUN:
        return False
    return not ("SLURM_PTY_PORT" in environment and _has_terminal())


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _tasks(environment: Mapping[str, str]) -> int:
    # The step may have fewer than its job.
    return int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or "1")


def _tasks_here(environment: Mapping[str, str], world: int) -> int:
    """Tasks of this step on this node: of "2(x2),1" is 2 on each of two nodes, 1 on a third."""
    written = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", written):
        counts += [int(count)] * int(times or 1)
    node = environment.get("SLURM_NODEID", "0")
    if node.isdecimal() and int(node) < len(counts):
        return counts[int(node)]
    nodes = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES") or "1"
    return max(1, world // int(nodes))
