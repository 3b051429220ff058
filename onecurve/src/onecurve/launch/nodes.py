"""Several nodes that run the same command: lets them agree before torchelastic's agents meet.

The commands compare their overrides, and agree on one run directory. Everything else is done by
torchelastic: `Nodes.launch_options` chooses one of its two rendezvous, `static` or `c10d`.
https://docs.pytorch.org/docs/stable/elastic/rendezvous.html
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..machine import node_rank, nodes_asked
from . import addresses
from .addresses import ANSWER, gone, joined_store, listening_store, wait
from .meeting import Meeting

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Overrides that may differ from node to node.
LOCAL_KEYS = ("data.root=", "paths.", "hydra.", "launch.node_rank=")


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


def meet_nodes(config: "DictConfig") -> Nodes:
    """Meet the other nodes at `launch.rendezvous`, or at Kubeflow's address.

    Raises:
        UserError: If too few nodes come, or one of them has other overrides.
    """
    # Imported here, because scripts without a command line import this module, too.
    from ..run.redaction import overrides_of, redact_command

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
        _compare_commands(nodes, redact_command(overrides_of(config.hydra.overrides.task)))
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
