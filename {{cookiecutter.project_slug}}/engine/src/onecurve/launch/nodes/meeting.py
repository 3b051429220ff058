"""The agents of several nodes find each other, and settle on who is the first of them."""

import time
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

from omegaconf import DictConfig

from ... import machine
from ...errors import UserError
from .. import addresses
from ..listening import listening_store, store_class
from ..secret import secret_of
from ..store import SECONDS_TO_ANSWER, Member, Messages, gather, stay_until_read, wait
from .agents import Agents
from .come_back import take_place

# What may differ from node to node in the command.
LOCAL_KEYS = ("data.root=", "paths.", "hydra.", "launch.secret")


def nodes_meet(config: DictConfig) -> Agents:
    """The agents of several nodes meet at `launch.rendezvous`, or where Kubeflow says.

    Raises:
        UserError: If the others do not come, or typed something else.
    """
    limit = float(config.launch.timeout_seconds)
    deadline = time.monotonic() + limit
    while True:
        # None where a run ended there, of which this node had been one.
        if (agents := _meet(config, deadline, limit)) is not None:
            return agents


def _meet(config: DictConfig, deadline: float, limit: float) -> Agents | None:
    endpoint = str(addresses.rendezvous(config))
    host, port = addresses.host_and_port(endpoint)
    nodes = machine.num_nodes(config.trainer)
    store, hosts = _store_at(host, port, deadline, limit)

    here = addresses.is_here(host)
    me = Member.here(config, host if here else addresses.address_towards(host), hosts)
    shared = Messages(_under("meeting", store), secret_of(config) or "")
    place = shared.count("arrived", 1) - 1
    if place >= nodes:
        taken = UserError(
            f"launch.rendezvous={endpoint}: {nodes} nodes (trainer.num_nodes) already meet there; "
            f"give this run a place of its own, such as launch.rendezvous={host}:{port + 1}"
        )
        again = int(config.launch.max_restarts) > 0
        try:
            found = take_place(shared, me, nodes, again, deadline, taken)
        except RuntimeError:
            return None
        members, index = found
        _refuse_other_commands([members[index - 1], members[index]])
        addresses.name_interface(me.address)
        return Agents(shared, members, index, endpoint, hosts)
    members = gather(
        shared,
        place,
        me,
        nodes,
        deadline,
        f"launch.rendezvous={endpoint}: only @ of {nodes} nodes (trainer.num_nodes) came within "
        f"{limit:g} s (launch.timeout_seconds); type the same command on every node",
        endpoint,
    )
    if hosts:
        stay_until_read(shared, nodes)
    members.sort(key=Member.order)
    _refuse_same_numbers(members)
    _refuse_other_commands(members)
    addresses.name_interface(me.address)
    return Agents(shared, members, members.index(me), endpoint, hosts)


def _store_at(host: str, port: int, deadline: float, limit: float) -> tuple[Any, bool]:
    """The store at HOST:PORT, and whether this process is the one that it lives in.

    The name of a service may lead nowhere yet, also on the node that it names.
    """
    store = store_class()
    short = timedelta(seconds=SECONDS_TO_ANSWER)
    found: list[Any] = []

    def is_found() -> bool:
        if addresses.is_here(host) and addresses.is_free(port):
            # It fails where another node on this same machine was faster.
            with suppress(RuntimeError, OSError):
                found.append(listening_store(host, port, timeout=short))
        return bool(found) or addresses.accepts_connections(host, port)

    place = f"launch.rendezvous={host}:{port}"
    wait(
        is_found,
        deadline,
        lambda: (
            f"{place}: nobody answered there within {limit:g} s; type the same command on every "
            "node, with launch.rendezvous=HOST:PORT where HOST is one of them and PORT is reachable"
        ),
    )
    if found:
        return found[0], True
    try:
        return store(host, port, is_master=False, timeout=short), False
    except RuntimeError:
        raise UserError(
            f"{place}: something else listens there; use a free port, such as "
            f"launch.rendezvous={host}:{port + 1}"
        ) from None


def _under(prefix: str, store: Any) -> Any:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(prefix, store)


def _refuse_same_numbers(members: list[Member]) -> None:
    for one, other in pairwise(members):
        if one.number is not None and one.number == other.number:
            raise UserError(
                f"PET_NODE_RANK={one.number}: {one.address} and {other.address} say so alike; give "
                "each node a number of its own, or none of them"
            )


def _refuse_other_commands(members: list[Member]) -> None:
    common = {entry for entry in members[0].typed if not entry.startswith(LOCAL_KEYS)}
    for member in members[1:]:
        typed = {entry for entry in member.typed if not entry.startswith(LOCAL_KEYS)}
        if different := sorted(common ^ typed):
            raise UserError(
                f"{different[0]}: was typed on one of {members[0].address} and {member.address} "
                "alone; type the same command on every node"
            )
