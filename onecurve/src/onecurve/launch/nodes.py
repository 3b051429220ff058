"""Several nodes: torchrun starts their ranks, which meet; a pod of Kubeflow becomes torchrun.

Kubeflow starts one pod for each node, and sets torchrun's variables in it (PET_NNODES,
PET_NODE_RANK, PET_MASTER_ADDR, ...): `python train.py` there is `torchrun train.py`.
The ranks of an attempt then agree on one run: its directory, and what it resumes from. Rank 0
decides for all, through a key-value store: ranks that looked by themselves might find different
checkpoints, and have directories named by different seconds.
https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ..checkpoint.file import newest_checkpoint
from ..checkpoint.remote import DIRPATH, LAST, fetch, find, folder_of
from ..errors import UserError
from ..machine import Ranks, node_around, ranks_around
from .addresses import store_of_attempt
from .context import Attempt, Members, RunContext

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


def meet_ranks(ranks: Ranks, config: Mapping[str, Any], run_dir: Path) -> RunContext:
    """Meet the other ranks of an attempt, and adopt what rank 0 decides.

    `run_dir` is the directory of a new run; a restarted attempt uses that of the earlier ranks.

    Raises:
        UserError: If not all ranks come within `launch.timeout_seconds`, or if a rank has no access
            to the checkpoint to resume from.
    """
    members = Members()
    if ranks.world_size > 1:
        limit = float(config["launch"]["timeout_seconds"]) if "launch" in config else 600.0
        late = (
            f"trainer.num_nodes={ranks.nodes}: not all of {ranks.world_size} ranks came within "
            f"{limit:g} s (launch.timeout_seconds); start all of them at the same time"
        )
        store = store_of_attempt(ranks, time.monotonic() + limit, late)
        members = Members(ranks.rank, ranks.world_size, store, limit, late)
    run_dir, attempt = agree(members, ranks, run_dir, folder_of(config))
    # The context keeps `members` alive, and with them the store that the process group will use.
    return RunContext(run_dir, members, attempt)


def agree(
    members: Members, ranks: Ranks, run_dir: Path, address: str | None
) -> tuple[Path, Attempt]:
    """The run directory, and what an attempt resumes from.

    That is a file on a disk which all ranks see, or a copy of last.ckpt at an address.
    """
    # Ranks leave a note of their run directory for those of the next attempt, which would create
    # another: torchelastic has a folder for each agent, with attempt_N/LOCAL_RANK/error.json in it.
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    note = Path(file).parents[2] / "run_dir" if file else None
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    mine = note.read_text() if note and note.exists() else None
    noted = members.gather("noted", [mine, restarts])
    last = f"{address}/{LAST}"

    def decide() -> list[Any]:
        earlier = next((directory for directory, _ in noted if directory), None)
        # torchrun does not count a restart because a node has come or left.
        number = max(int(earlier is not None), *(count for _, count in noted))
        directory = earlier or str(run_dir)
        if not number:
            return [directory, number, None, None]
        if address:
            return [directory, number, None, find(DIRPATH, last, needed=False)]
        newest = newest_checkpoint(Path(directory))[0]
        return [directory, number, str(newest) if newest else None, None]

    directory, number, checkpoint, remote = members.broadcast("attempt", decide)
    if note and ranks.local_rank == 0:
        note.write_text(directory)
    if remote:
        checkpoint = str(fetch(DIRPATH, last, remote))
    if checkpoint is None:
        return Path(directory), Attempt(number)
    lacking = sum(members.gather("lacks", not os.path.exists(checkpoint)))

    def reject_lacking() -> None:
        if lacking:
            raise UserError(
                f"launch.max_restarts: {lacking} of {ranks.world_size} ranks have no access to "
                f"{checkpoint}; use a disk that all nodes share, or write checkpoints to an "
                f"address: {DIRPATH}=s3://BUCKET/PATH"
            )

    members.broadcast("lacking", reject_lacking)
    return Path(directory), Attempt(number, checkpoint)
