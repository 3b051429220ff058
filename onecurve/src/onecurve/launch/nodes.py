"""Several nodes: torchrun starts their ranks, and a pod of Kubeflow becomes torchrun.

Kubeflow starts one pod for each node, and sets torchrun's variables in it (PET_NNODES,
PET_NODE_RANK, PET_MASTER_ADDR, ...): `python train.py` there is `torchrun train.py`.
https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import os
import shlex
import sys
from typing import NoReturn

from ..machine import node_around, ranks_around

COUNTED_BY_TORCHRUN = ("trainer.num_nodes=", "trainer.devices=")


def is_pod_of_several() -> bool:
    """Whether this process was started for one of several nodes, and its ranks were not."""
    return ranks_around() is None and (node_around().nodes or 1) > 1


def become_torchrun(ranks: int, max_restarts: int) -> NoReturn:
    """Replace this process by torchrun, which starts the ranks of this pod and joins the others.

    It runs the same command in each: call it before anything is on the disk.
    """
    script, original = sys.argv[0], sys.orig_argv
    words = original[original.index(script) + 1 :] if script in original else sys.argv[1:]
    options = [f"--nproc-per-node={ranks}"]
    if max_restarts:
        options.append(f"--max-restarts={max_restarts}")
    # With a store shared with its ranks (torch 2.15) an agent of an elastic job would wait forever
    # for a pod that joins later.
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **os.environ}
    torchrun = [sys.executable, "-m", "torch.distributed.run", *options, script, *words]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(sys.executable, torchrun, environment)


def torchrun_command(nodes: int, devices: int) -> str:
    """This command on several nodes, to be typed on each of them."""
    words = [word for word in sys.argv[1:] if not word.startswith(COUNTED_BY_TORCHRUN)]
    return (
        f"torchrun --nnodes={nodes} --nproc-per-node={devices} --node-rank=0 --master-addr=HOST "
        f"--master-port=29500 {shlex.join([sys.argv[0], *words])}"
    )
