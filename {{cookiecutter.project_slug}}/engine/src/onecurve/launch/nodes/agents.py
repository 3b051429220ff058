"""The agents of several nodes meet, and tell each other while a run lasts that one of them failed.

Ranks of other nodes may wait for a dead one until a collective times out, so an agent ends its own
ranks as soon as another says that it has ended. The first cause is what all of them show.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from omegaconf import DictConfig

from ...errors import UserError
from ...run.outcome import RankFailed
from .. import addresses
from ..environment import unchanged_environment
from ..listening import listening_store
from ..rendezvous import Rendezvous
from ..secret import secret_of
from ..store import SECONDS_TO_ANSWER, Member, Messages, gather, stay_until_read, wait

SECONDS_BETWEEN_LOOKS = 0.5
# Ranks that lost contact end by themselves, and that is told apart better.
SECONDS_TO_END_ALONE = 4
SECONDS_TO_HEAR_THE_CAUSE = 10
SECONDS_TO_LEAVE = 15
# What may differ from node to node in the command.
LOCAL_KEYS = ("data.root=", "paths.", "hydra.", "launch.secret")


class Agents(Rendezvous):
    """The agents of a run's nodes."""

    def backend(self) -> str:
        """Name under which torchelastic finds where they meet."""
        # Here, as it imports torch.
        from . import attempts

        return attempts.BACKEND

    @contextmanager
    def watching(self) -> Iterator[None]:
        """End this node's ranks, by SIGHUP to their agent, some seconds after another failed."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(SECONDS_BETWEEN_LOOKS):
                if self._heard() is None:
                    continue
                done.wait(SECONDS_TO_END_ALONE)
                # torchelastic sets its handler when it starts the ranks.
                if not done.is_set() and callable(signal.getsignal(signal.SIGHUP)):
                    os.kill(os.getpid(), signal.SIGHUP)
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()

    def agree_on(self, failure: Exception) -> Exception:
        """The failure that this node should end with, which may be another's.

        Args:
            failure: What this node's ranks ended with.
        """
        if getattr(failure, "status", 0) > 128 and (cause := self._heard()):
            return cause  # `watching` stopped the ranks here
        if isinstance(failure, RankFailed) and failure.lost_contact:
            deadline = time.monotonic() + SECONDS_TO_HEAR_THE_CAUSE
            while time.monotonic() < deadline:
                if cause := self._heard():
                    return cause
                time.sleep(SECONDS_BETWEEN_LOOKS)
        told = {
            "node": self.members[self.index].address,
            "text": str(failure).splitlines()[0],
            "refusal": isinstance(failure, UserError),
            "status": getattr(failure, "status", 1),
        }
        # Without the store the others see that its node is gone.
        with suppress(RuntimeError):
            if not self.messages.is_said("failure"):
                self.messages.say("failure", told)
        return failure

    def leave(self) -> None:
        """Wait until every node has ended its ranks: the store must outlive them, and so must logs.

        Not where the node with the store has left.
        """
        deadline = time.monotonic() + SECONDS_TO_LEAVE
        with suppress(RuntimeError):
            left = self.messages.count("left", 1)
            while left < len(self.members) and time.monotonic() < deadline:
                time.sleep(SECONDS_BETWEEN_LOOKS / 5)
                left = self.messages.count("left")

    def _heard(self) -> Exception | None:
        """What another node ended with; None while all is well."""
        try:
            if not self.messages.is_said("failure"):
                return None
            told = self.messages.hear("failure")
        except RuntimeError:
            gone = f"the node at {self.endpoint} is gone, or cannot be reached any more"
            return RankFailed(gone)
        if told["refusal"]:
            return UserError(told["text"])
        return RankFailed(f"node {told['node']} ended: {told['text']}", told["status"])


def nodes_meet(config: DictConfig) -> Agents:
    """The agents of several nodes meet at `launch.rendezvous`, as torchelastic does later.

    Raises:
        UserError: If the others do not come, or typed something else.
    """
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
        # It fails where another node on this same machine was faster.
        with suppress(RuntimeError, OSError):
            store = listening_store(host, port, timeout=short)
    hosts = store is not None
    if store is None:
        wait(
            lambda: addresses.accepts_connections(host, port),
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

    me = Member.here(config, host if here else addresses.address_towards(host))
    shared = Messages(PrefixStore("meeting", store), secret_of(config) or "")
    place = shared.count("arrived", 1) - 1
    if place >= nodes:
        raise UserError(
            f"launch.rendezvous={endpoint}: {nodes} nodes (trainer.num_nodes) already meet there; "
            f"give this run a place of its own, such as launch.rendezvous={host}:{port + 1}"
        )
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
    members.sort()
    _refuse_other_commands(members)
    addresses.name_interface(me.address)
    return Agents(shared, members, members.index(me), endpoint, hosts)


def _refuse_other_commands(members: list[Member]) -> None:
    common = {entry for entry in members[0].typed if not entry.startswith(LOCAL_KEYS)}
    for member in members[1:]:
        typed = {entry for entry in member.typed if not entry.startswith(LOCAL_KEYS)}
        if different := sorted(common ^ typed):
            raise UserError(
                f"{different[0]}: was typed on one of {members[0].address} and {member.address} "
                "alone; type the same command on every node"
            )
