"""Several nodes, on each of which the same command was typed: where torchrun's agents will meet.

Before they do, the commands compare what was typed and take one run directory. All else is
torchrun's: `Nodes.launch_options` says by which of its two rendezvous, `static` or `c10d`.
https://docs.pytorch.org/docs/stable/elastic/rendezvous.html
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..surroundings import node_rank, nodes_asked
from . import addresses
from .meeting import Meeting
from .store import SECONDS_TO_ANSWER, gone, listening_store, store_class, wait

if TYPE_CHECKING:
    from omegaconf import DictConfig

# What may differ from node to node in the command.
LOCAL_KEYS = ("data.root=", "paths.", "hydra.", "launch.node_rank=")


@dataclass(eq=False, kw_only=True)
class Nodes(Meeting):
    """The commands of a run's nodes.

    Args:
        endpoint: HOST:PORT where they meet.
        smallest: How many nodes the run needs, of at most `count`.
        rank: The number of this node; None where torchrun numbers them.
        address: How the others reach this node.
    """

    endpoint: str
    smallest: int
    rank: int | None
    address: str

    def reports_failure(self) -> bool:
        """Each node has a terminal of its own."""
        return True

    def launch_options(self, timeout_seconds: float) -> dict[str, Any]:
        """What makes torchelastic's LaunchConfig that of these nodes' agents."""
        # Kubeflow's, as torchrun writes it: k=v,k=v.
        pairs = os.environ.get("PET_RDZV_CONF", "").split(",")
        settings: dict[str, Any] = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        # torch wants whole seconds.
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
    """Meet at `launch.rendezvous`, or where Kubeflow says.

    Args:
        config: What Hydra composed.

    Raises:
        UserError: If too few nodes come, or something else was typed on one of them.
    """
    # Here, because a script without a command line imports this module, too.
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
            "s (launch.timeout_seconds); type the same command on every node"
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
            address=host if addresses.is_here(host) else addresses.address_towards(host),
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

    That is node 0 where nodes have numbers, and otherwise the one that HOST is. Its name may lead
    nowhere yet, also on the node that it names.
    """
    short = timedelta(seconds=SECONDS_TO_ANSWER)
    may_serve = rank in (None, 0)
    found: list[Any] = []

    def is_found() -> bool:
        if may_serve:
            # It fails where HOST is another machine, or a node on this one was faster.
            with suppress(RuntimeError, OSError):
                found.append(listening_store(host, port, multi_tenant=True, timeout=short))
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
            else f"{place}: nobody answered there within {limit:g} s; type the same command on "
            "every node, with launch.rendezvous=HOST:PORT where HOST is "
            f"{'one of them' if rank is None else 'node 0'} and PORT is reachable"
        ),
    )
    if found:
        return found[0], True
    try:
        return store_class()(host, port, is_master=False, timeout=short), False
    except RuntimeError:
        raise UserError(
            f"{place}: something else listens there; use a free port, such as "
            f"launch.rendezvous={other}"
        ) from None


def _compare_commands(nodes: Nodes, words: list[str]) -> None:
    """Wait until enough nodes are there, and have the same command.

    Raises:
        UserError: If too few come, or something was typed on one of them alone.
    """
    mine = {word for word in words if not word.startswith(LOCAL_KEYS)}
    nodes.store.set(f"command/{nodes.index}", json.dumps(sorted(mine)))
    keys = [f"command/{index}" for index in range(nodes.smallest)]
    nodes.wait_for(keys)
    commands = [set(json.loads(nodes.store.get(key))) for key in keys]
    different = sorted({word for command in commands for word in command ^ mine})
    if different:
        nodes.stay_until_read("commands", nodes.smallest)
        raise UserError(
            f"{different[0]}: was typed on one of the nodes alone; type the same command on every "
            "node"
        )
