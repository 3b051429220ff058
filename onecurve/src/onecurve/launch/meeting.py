"""Lets processes that were started separately agree on one run, before it creates its directory.

There are two cases: ranks that torchrun or srun has started, and several nodes that run the same
command. They meet in a key-value store, and use the run directory of the first. Nodes also compare
their overrides; everything else is done by torchelastic, one of whose two rendezvous, `static` or
`c10d`, `Nodes.launch_options` chooses.
https://docs.pytorch.org/docs/stable/elastic/rendezvous.html
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.file import newest_checkpoint
from ..checkpoint.remote import fetch, find
from ..errors import UserError
from ..machine import Ranks, node_rank, nodes_asked, ranks_around
from . import addresses
from .addresses import ANSWER, gone, joined_store, listening_store, store_of_attempt, wait
from .context import Attempt, Members, RunContext

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Overrides that may differ from node to node.
LOCAL_KEYS = ("data.root=", "paths.", "hydra.", "launch.node_rank=")


@dataclass(eq=False, kw_only=True)
class Meeting(Members):
    """Processes that communicate through a store, which holds values as JSON."""

    store: Any  # a TCPStore
    index: int  # the number of this process; 0 is the first
    count: int  # the number of processes
    limit: float  # seconds to wait for the others
    missing: Callable[[int], str]  # makes the error line for when only so many of them have come
    serves: bool  # whether the store's server is in this process

    def broadcast(self, key: str, find_out: Callable[[], Any]) -> Any:
        try:
            if self.is_first:
                try:
                    self._set(key, [find_out(), None])
                except UserError as error:
                    self._set(key, [None, str(error)])
            self.wait_for([key])
            answer, refusal = json.loads(self.store.get(key))
            if refusal is not None:
                self.stay_until_read(key, self.count)
        except RuntimeError:
            raise self._gone() from None
        if refusal is not None:
            raise UserError(refusal)
        return answer

    def gather(self, key: str, value: Any) -> list[Any]:
        keys = [f"{key}/{index}" for index in range(self.count)]
        try:
            self._set(f"{key}/{self.index}", value)
            if not self.is_first:
                return []
            self.wait_for(keys)
            return [json.loads(self.store.get(each)) for each in keys]
        except RuntimeError:
            raise self._gone() from None

    def reports_failure(self) -> bool:
        try:
            return int(self.store.add("failures", 1)) == 1
        except RuntimeError:
            return True

    def _set(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def wait_for(self, keys: list[str]) -> None:
        """Wait until others have set these keys, within the limit."""
        wait(
            lambda: bool(self.store.check(keys)),
            time.monotonic() + self.limit,
            lambda: self.missing(sum(bool(self.store.check([key])) for key in keys)),
            seconds_between_looks=0.02,
        )

    def stay_until_read(self, key: str, readers: int) -> None:
        """Keep the store alive until the others have read a key, if it is in this process."""
        deadline = time.monotonic() + ANSWER.total_seconds()
        self.store.add(f"{key}/read", 1)
        while self.serves and self.store.add(f"{key}/read", 0) < readers:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)

    def _gone(self) -> UserError:
        return gone(f"{self.store.host}:{self.store.port}")


def meet(config: "DictConfig", overrides: Callable[[], list[str]]) -> RunContext:
    """Meet the other processes of this run, if there are any, and agree on the run directory.

    Its directory is set as ``hydra.run.dir``. Nodes that do not come, or have other `overrides`,
    are rejected.
    """
    run_dir = Path(os.path.abspath(str(config.hydra.run.dir)))
    ranks = ranks_around()
    if ranks is not None:
        context = meet_ranks(ranks, config, run_dir)
        run_dir = context.run_dir
    elif "launch" in config and nodes_asked(config)[1] > 1:
        nodes = _meet_nodes(config, overrides())
        run_dir = Path(nodes.broadcast("run_dir", lambda: str(run_dir)))
        context = RunContext(run_dir, nodes)
        if not nodes.is_first:
            number = min(nodes.index + 1, nodes.count)
            print(f"node {number} of {nodes.count}: the node with rank 0 shows the run {run_dir}")
    else:
        return RunContext(run_dir)
    # Imported here, because scripts without a command line import this module, too.
    from omegaconf import open_dict, read_write

    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.run.dir = str(run_dir)
        if not context.members.is_first:
            config.hydra.output_subdir = None
    return context


def meet_ranks(ranks: Ranks, config: Mapping[str, Any], run_dir: Path) -> RunContext:
    """Meet the other ranks of an attempt, and adopt what rank 0 decides.

    `run_dir` is the directory of a new run; a restarted attempt uses that of the earlier ranks.

    Raises:
        UserError: If not all ranks come within `launch.timeout_seconds`, or if a rank has no access
            to the checkpoint to resume from.
    """
    limit = float(config["launch"]["timeout_seconds"]) if "launch" in config else 600.0
    members = _members(ranks, limit)
    run_dir, attempt = agree(members, ranks, run_dir, mirror_of(config))
    # The context keeps `members` alive, and with them the store that the process group will use.
    return RunContext(run_dir, members, attempt)


def mirror_of(config: Mapping[str, Any]) -> str | None:
    """`checkpoint.mirror_to`; in `evaluate.py` and others, `checkpoint` is a file instead."""
    settings = config.get("checkpoint")
    return settings.get("mirror_to") if isinstance(settings, Mapping) else None


def _members(ranks: Ranks, limit: float) -> Members:
    if ranks.world_size == 1:
        return Members()
    deadline = time.monotonic() + limit

    def missing(came: int) -> str:
        return (
            f"trainer.num_nodes={ranks.nodes}: only {came} of {ranks.world_size} ranks came within "
            f"{limit:g} s (launch.timeout_seconds); start all of them at the same time"
        )

    store = store_of_attempt(ranks, deadline, missing)
    return Meeting(
        store=store,
        index=ranks.rank,
        count=ranks.world_size,
        limit=limit,
        missing=missing,
        serves=ranks.rank == 0,
    )


def _run_dir_note() -> Path | None:
    """A file in which ranks leave their run directory for the ranks of the next attempt.

    Without it, ranks that torchrun restarts would create a new run. torchelastic creates a folder
    per agent with attempt_N/LOCAL_RANK/error.json in it.
    """
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(file).parents[2] / "run_dir" if file else None


def agree(
    members: Members, ranks: Ranks, run_dir: Path, mirror: str | None
) -> tuple[Path, Attempt]:
    """Let rank 0 decide for all: the run directory, and what an attempt resumes from.

    Nodes that do not share the first one's disk fetch the checkpoint from the mirror.
    """
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    note = _run_dir_note()
    mine = note.read_text() if note and note.exists() else None
    noted = members.gather("noted", [mine, restarts])

    def decide() -> list[Any]:
        earlier = next((directory for directory, _ in noted if directory), None)
        # torchrun does not count a restart because a node has come or left.
        number = max(int(earlier is not None), *(count for _, count in noted))
        directory = earlier or str(run_dir)
        newest = newest_checkpoint(Path(directory))[0] if number else None
        return [directory, number, str(newest) if newest else None]

    directory, number, checkpoint = members.broadcast("attempt", decide)
    if note and ranks.local_rank == 0:
        note.write_text(directory)
    if checkpoint is None:
        return Path(directory), Attempt(number)
    lacking = sum(members.gather("lacks", not os.path.exists(checkpoint)))

    def find_another() -> Any:
        if lacking and mirror is None:
            raise UserError(
                f"launch.max_restarts: {lacking} of {ranks.world_size} ranks have no access to "
                f"{checkpoint}; use a disk that all nodes share, or send each checkpoint to an "
                "address with checkpoint.mirror_to"
            )
        return find("checkpoint.mirror_to", str(mirror)) if lacking else None

    if found := members.broadcast("another", find_another):
        checkpoint = str(fetch("checkpoint.mirror_to", str(mirror), found))
    return Path(directory), Attempt(number, checkpoint)


@dataclass(eq=False, kw_only=True)
class Nodes(Meeting):
    """The commands that run on the nodes of a run."""

    endpoint: str  # HOST:PORT at which they meet
    smallest: int  # the minimal number of nodes; `count` is the maximal one
    rank: int | None  # the number of this node; None if torchelastic numbers them
    address: str  # the address by which the others reach this node

    def reports_failure(self) -> bool:
        """Every node reports, because each has its own terminal."""
        return True

    def launch_options(self, timeout_seconds: float) -> dict[str, Any]:
        """The options of torchelastic's LaunchConfig for the agents of these nodes."""
        # Set by Kubeflow, in torchrun's format: k=v,k=v.
        pairs = os.environ.get("PET_RDZV_CONF", "").split(",")
        settings: dict[str, Any] = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        # torch needs an integer.
        limit = max(1, int(timeout_seconds))
        if self.rank is not None:
            backend = "static"
            settings |= {"rank": self.rank, "timeout": limit}
        else:
            backend = "c10d"
            settings |= {"is_host": self.serves, "join_timeout": limit}
        return {
            "min_nodes": self.smallest,
            "max_nodes": self.count,
            "rdzv_backend": backend,
            "rdzv_endpoint": self.endpoint,
            "rdzv_configs": settings,
            "run_id": os.environ.get("PET_RDZV_ID", "onecurve"),
            "local_addr": self.address,
        }


def _meet_nodes(config: "DictConfig", overrides: list[str]) -> Nodes:
    limit = float(config.launch.timeout_seconds)
    deadline = time.monotonic() + limit
    smallest, largest = nodes_asked(config)
    rank = node_rank(config)
    endpoint = str(addresses.rendezvous(config))
    host, _, port = endpoint.rpartition(":")

    def missing(came: int) -> str:
        return (
            f"launch.rendezvous={endpoint}: only {came} of {smallest} nodes came within {limit:g} "
            "s (launch.timeout_seconds); run the same command on every node"
        )

    store, serves = _store_at(host, int(port), rank, deadline, limit)
    try:
        way = "c10d" if rank is None else "static"
        if store.compare_set("way", "", way).decode() != way:
            raise UserError(
                f"launch.node_rank={'null' if rank is None else rank}: only some of the nodes have "
                "numbers; give each one its own, from launch.node_rank=0, or none"
            )
        nodes = Nodes(
            store=store,
            index=int(store.add("arrived", 1)) - 1 if rank is None else rank,
            count=largest,
            limit=limit,
            missing=missing,
            serves=serves,
            endpoint=endpoint,
            smallest=smallest,
            rank=rank,
            address=addresses.of_this_machine(host),
        )
        _compare_commands(nodes, overrides)
    except RuntimeError:
        raise gone(endpoint) from None
    addresses.name_interface(nodes.address)
    return nodes


def _store_at(
    host: str, port: int, rank: int | None, deadline: float, limit: float
) -> tuple[Any, bool]:
    """The store at HOST:PORT, and whether this process serves it.

    If nodes have numbers, node 0 serves it, otherwise the node that HOST is. It may take a while
    until HOST can be resolved, even on that node.
    """
    may_serve = rank in (None, 0)
    found: list[Any] = []

    def is_found() -> bool:
        if may_serve:
            # It fails if HOST is another machine, or if another node on this one was faster.
            with suppress(RuntimeError, OSError):
                found.append(listening_store(host, port, multi_tenant=True, timeout=ANSWER))
        return bool(found) or (rank != 0 and addresses.accepts_connections(host, port))

    place = f"launch.rendezvous={host}:{port}"
    other = f"{host}:{port + 1}"
    wait(
        is_found,
        deadline,
        lambda: (
            f"{place}: node 0 cannot listen there within {limit:g} s; HOST must be this machine "
            f"and PORT free on it, such as launch.rendezvous={other}"
            if rank == 0
            else f"{place}: nothing answered there within {limit:g} s; run the same command on "
            "every node, with launch.rendezvous=HOST:PORT where HOST is "
            f"{'one of them' if rank is None else 'node 0'} and PORT is reachable"
        ),
    )
    if found:
        return found[0], True
    try:
        return joined_store(host, port), False
    except RuntimeError:
        raise UserError(
            f"{place}: something else listens there; use a free port, such as "
            f"launch.rendezvous={other}"
        ) from None


def _compare_commands(nodes: Nodes, words: list[str]) -> None:
    """Wait until enough nodes have come, and reject an override that only some of them have."""
    mine = {word for word in words if not word.startswith(LOCAL_KEYS)}
    nodes.store.set(f"command/{nodes.index}", json.dumps(sorted(mine)))
    keys = [f"command/{index}" for index in range(nodes.smallest)]
    nodes.wait_for(keys)
    commands = [set(json.loads(nodes.store.get(key))) for key in keys]
    different = sorted({word for command in commands for word in command ^ mine})
    if different:
        nodes.stay_until_read("commands", nodes.smallest)
        raise UserError(
            f"{different[0]}: only some of the nodes have this override; run the same command on "
            "every node"
        )
