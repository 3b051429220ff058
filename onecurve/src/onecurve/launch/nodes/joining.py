"""The agents of several nodes find each other, and settle on who is the first of them."""

import time
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import Any

from omegaconf import DictConfig

from ... import machine
from ...errors import UserError, say
from .. import addresses
from ..listening import listening_store, store_class
from ..secret import secret_of
from ..store import (
    SECONDS_BETWEEN_LOOKS,
    SECONDS_TO_ANSWER,
    Member,
    Messages,
    stay_until_read,
    wait,
    with_the_run_that_goes_on,
)
from .agents import Agents
from .arrivals import gather_living
from .come_back import take_place

# What may differ from node to node in the command.
LOCAL_KEYS = ("data.root=", "paths.", "hydra.", "launch.secret")


def nodes_meet(config: DictConfig, begun: str | None = None) -> Agents:
    """The agents of several nodes meet at `launch.rendezvous`, or where Kubeflow says.

    Args:
        config: What Hydra composed.
        begun: The run directory of a run that goes on, where this node was one of it before.

    Raises:
        UserError: If the others do not come, or typed something else.
    """
    limit = float(config.launch.timeout_seconds)
    deadline = time.monotonic() + limit
    has_said = False
    while True:
        try:
            return _meet(config, deadline, limit, begun)
        except RuntimeError:
            # The store has ended: with a run that this node had been one of, or with a node that
            # waited here, too, and may come back.
            if not has_said:
                at = addresses.rendezvous(config)
                say(f"the node that the others meet at, {at}, is gone; waiting {limit:g} s for it")
                has_said = True
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _meet(config: DictConfig, deadline: float, limit: float, begun: str | None) -> Agents:
    endpoint = str(addresses.rendezvous(config))
    host, port = addresses.host_and_port(endpoint)
    nodes = machine.num_nodes(config.trainer)
    store, hosts = _store_at(host, port, deadline, limit)

    here = addresses.is_here(host)
    me = Member.here(config, host if here else addresses.address_towards(host), hosts)
    if begun is not None:
        me = me._replace(run_dir=begun, begun=True)
    shared = Messages(_under("meeting", store), secret_of(config) or "")
    missing = (
        f"launch.rendezvous={endpoint}: only @ of {nodes} nodes (trainer.num_nodes) came within "
        f"{limit:g} s (launch.timeout_seconds); type the same command on every node"
    )
    members = gather_living(shared, me, nodes, deadline, missing)
    if members is None:
        taken = UserError(
            f"launch.rendezvous={endpoint}: {nodes} nodes (trainer.num_nodes) already meet there; "
            f"give this run a place of its own, such as launch.rendezvous={host}:{port + 1}"
        )
        again = int(config.launch.max_restarts) > 0
        members, index = take_place(shared, me, nodes, again, deadline, taken)
        _refuse_other_commands([members[index - 1], members[index]])
        addresses.name_interface(me.address)
        return Agents(shared, members, index, endpoint, hosts)
    if hosts:
        stay_until_read(shared, nodes)
    members.sort(key=Member.order)
    _refuse_same_numbers(members)
    _refuse_other_commands(members)
    addresses.name_interface(me.address)
    index = members.index(me)
    return Agents(shared, with_the_run_that_goes_on(members), index, endpoint, hosts)


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
