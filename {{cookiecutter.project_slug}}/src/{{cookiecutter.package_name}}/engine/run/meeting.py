"""How processes that were started apart become one run, before it makes its directory.

Two cases: several nodes, on each of which the same command was typed (`launch.rendezvous`), and
ranks that torchrun or srun started. They meet in a key-value store, wait until all are there, and
take the run directory that the first of them proposes. Only the first writes the record of the run.

torch is imported only where there is somebody to meet.
"""

import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from omegaconf import DictConfig, open_dict, read_write

from ...errors import UserError
from . import addresses, machine

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

SECONDS_TO_ANSWER = 30
SECONDS_BETWEEN_LOOKS = 0.1
# What may differ from node to node in the command.
LOCAL_KEYS = ("data.root=", "paths.", "hydra.")


class Member(NamedTuple):
    """What a process says of itself when it arrives. Members are sorted by address, then pid.

    torchelastic sorts nodes in the same way, so that rank 0 is on the first of them.
    """

    address: str
    pid: int
    run_dir: str
    typed: list[str]


class Meeting:
    """What the members of a run agreed on.

    Attributes:
        store: The key-value store that they share while the run lasts.
        members: All of them, the first one first.
        index: This process's place among them.
        endpoint: HOST:PORT of the store.
        hosts: Whether the store lives in this process.
    """

    def __init__(
        self, store: "Store", members: list[Member], index: int, endpoint: str, hosts: bool
    ) -> None:
        self.store = store
        self.members = members
        self.index = index
        self.endpoint = endpoint
        self.hosts = hosts

    @property
    def first(self) -> bool:
        """Whether this process makes the run directory and writes the record."""
        return self.index == 0


current: Meeting | None = None
"""The meeting of the run that this process takes part in; None for a run of its own."""


def settle(config: DictConfig) -> None:
    """Meet the other processes of this run, if there are any, and take their run directory.

    Args:
        config: What Hydra composed; ``hydra.run.dir`` in it is set to what was agreed on.

    Raises:
        UserError: If the others do not come, or typed something else.
    """
    global current
    current = None
    ranks = machine.ranks_around()
    if ranks is not None:
        if ranks.world_size > 1:
            current = _ranks_meet(ranks, config)
    elif "trainer" in config and config.trainer.num_nodes > 1:
        current = _nodes_meet(config)
    if current is None:
        return
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.run.dir = current.members[0].run_dir
        if not current.first:
            config.hydra.output_subdir = None
    if not current.first and ranks is None:
        first, count = current.members[0], len(current.members)
        print(f"node {current.index + 1} of {count}: {first.address} shows the run {first.run_dir}")


def writes_record() -> bool:
    """Whether this process writes the run's config.yaml, environment.json and metrics.json."""
    return current is None or current.first


def speaks() -> bool:
    """Whether this process shows the end of a failed run: of several ranks, the first to ask."""
    if current is None or machine.ranks_around() is None:
        return True
    try:
        return int(current.store.add("spoken", 1)) == 1
    except RuntimeError:
        return True


def _nodes_meet(config: DictConfig) -> Meeting:
    """The agents of several nodes meet at `launch.rendezvous`, as torchelastic does later."""
    # Here, as it imports this module.
    from .launch import unchanged_environment

    # torch reads it as it is imported here; the ranks, which import it by themselves, do not see
    # it. Of a store that is gone it would show a stack trace before the line that says so.
    with unchanged_environment(["TORCH_CPP_LOG_LEVEL"]):
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    endpoint = str(addresses.rendezvous(config))
    host, port = addresses.host_and_port(endpoint)
    nodes = int(config.trainer.num_nodes)
    limit = float(config.launch.timeout_seconds)
    deadline = time.monotonic() + limit
    short = timedelta(seconds=SECONDS_TO_ANSWER)
    here = addresses.is_here(host)

    store = None
    if here and addresses.is_free(port):
        # It fails where another node on this same machine was faster. torchelastic's own store in
        # this process will share the server: multi_tenant.
        with suppress(RuntimeError):
            store = TCPStore(
                host, port, is_master=True, multi_tenant=True, wait_for_workers=False, timeout=short
            )
    hosts = store is not None
    if store is None:
        _wait(
            lambda: addresses.answers(host, port),
            deadline,
            lambda: (
                f"launch.rendezvous={endpoint}: nobody answered there within {limit:g} s; type the "
                "same command on every node, with launch.rendezvous=HOST:PORT where HOST is one of "
                "them and PORT is reachable"
            ),
        )
        try:
            store = TCPStore(host, port, is_master=False, timeout=short)
        except RuntimeError:
            raise UserError(
                f"launch.rendezvous={endpoint}: something else listens there; use a free port, "
                f"such as launch.rendezvous={host}:{port + 1}"
            ) from None

    me = _member(config, host if here else addresses.address_towards(host))
    shared = PrefixStore("meeting", store)
    place = int(shared.add("arrived", 1)) - 1
    if place >= nodes:
        raise UserError(
            f"launch.rendezvous={endpoint}: {nodes} nodes (trainer.num_nodes) already meet there; "
            f"give this run a place of its own, such as launch.rendezvous={host}:{port + 1}"
        )
    members = _gather(
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
        _stay_until_read(shared, nodes)
    members.sort()
    _refuse_other_commands(members)
    addresses.name_interface([member.address for member in members if member.address != me.address])
    return Meeting(shared, members, members.index(me), endpoint, hosts)


def _ranks_meet(ranks: machine.Ranks, config: DictConfig) -> Meeting:
    """The ranks that torchrun or srun started meet where their process group will."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, port = addresses.main_address(ranks)
    limit = float(config.launch.timeout_seconds) if "launch" in config else 600.0
    deadline = time.monotonic() + limit
    # torchrun has a server at this address already, otherwise the process group shares this one.
    hosts = ranks.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    missing = (
        f"trainer.num_nodes={config.trainer.num_nodes}: only @ of {ranks.world_size} ranks came "
        f"to {host}:{port} within {limit:g} s (launch.timeout_seconds); start all of them at the "
        "same time with torchrun or srun"
    )
    if not hosts:
        _wait(lambda: addresses.answers(host, port), deadline, lambda: missing.replace("@", "1"))
    store = TCPStore(
        host, port, is_master=hosts, multi_tenant=True, wait_for_workers=False,
        timeout=timedelta(seconds=SECONDS_TO_ANSWER),
    )  # fmt: skip
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared = PrefixStore(f"meeting/{attempt}", store)
    me = _member(config, platform.node())
    endpoint = f"{host}:{port}"
    members = _gather(shared, ranks.rank, me, ranks.world_size, deadline, missing, endpoint)
    if hosts:
        _stay_until_read(shared, ranks.world_size)
    return Meeting(shared, members, ranks.rank, endpoint, hosts)


def _member(config: DictConfig, address: str) -> Member:
    run_dir = os.path.abspath(str(config.hydra.run.dir))
    typed = [str(override) for override in config.hydra.overrides.task]
    return Member(address, os.getpid(), run_dir, typed)


def _gather(
    store: "Store",
    place: int,
    me: Member,
    count: int,
    deadline: float,
    missing: str,
    endpoint: str,
) -> list[Member]:
    """What every member says, in order of their places."""
    keys = [f"member/{number}" for number in range(count)]
    try:
        store.set(keys[place], json.dumps(me))
        _wait(
            lambda: store.check(keys),
            deadline,
            lambda: missing.replace("@", str(sum(store.check([key]) for key in keys))),
        )
        members = [Member(*json.loads(store.get(key))) for key in keys]
        store.add("read", 1)
    except RuntimeError:
        raise UserError(
            f"{endpoint}: the process that the others met at has ended; what it printed says why; "
            "then start all of them again"
        ) from None
    return members


def _stay_until_read(store: "Store", count: int) -> None:
    """A refusal may end this process next, and the store with it, before the others have read."""
    deadline = time.monotonic() + SECONDS_TO_ANSWER
    while store.add("read", 0) < count and time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _wait(condition: Callable[[], bool], deadline: float, otherwise: Callable[[], str]) -> None:
    """Look again and again, so that Ctrl-C is heard between two looks."""
    while not condition():
        if time.monotonic() > deadline:
            raise UserError(otherwise())
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _refuse_other_commands(members: list[Member]) -> None:
    common = {entry for entry in members[0].typed if not entry.startswith(LOCAL_KEYS)}
    for member in members[1:]:
        typed = {entry for entry in member.typed if not entry.startswith(LOCAL_KEYS)}
        if different := sorted(common ^ typed):
            raise UserError(
                f"{different[0]}: was typed on one of {members[0].address} and {member.address} "
                "alone; type the same command on every node"
            )
