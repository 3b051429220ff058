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

from ...errors import UserError
from ...run.outcome import RankFailed
from ..rendezvous import HostGone, Rendezvous
from ..store import Member, Messages
from .beats import SECONDS_TO_BE_GONE, SECONDS_TO_BE_LOST, Beats

SECONDS_BETWEEN_LOOKS = 0.5
# Ranks that lost contact end by themselves, and that is told apart better.
SECONDS_TO_END_ALONE = 4
SECONDS_TO_HEAR_THE_CAUSE = 10
SECONDS_TO_LEAVE = 15
AND_NOW = (
    "; resume=last goes on with the run, and launch.max_restarts=1 waits for the node to come back"
)


class Agents(Rendezvous):
    """The agents of a run's nodes: arguments as for `Rendezvous`."""

    def __init__(
        self, messages: Messages, members: list[Member], index: int, endpoint: str, hosts: bool
    ) -> None:
        super().__init__(messages, members, index, endpoint, hosts)
        # For a node that comes back, and takes the place of the one that was.
        messages.say(member_at(index), members[index])
        self.beats = Beats(messages, len(members), index)
        self.beats.begin()

    def look_again(self) -> None:
        """Others may have taken the places of nodes that are gone."""
        places = range(len(self.members))
        self.members = [Member(*self.messages.hear(member_at(index))) for index in places]

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
                if self._heard() is None and self.gone(SECONDS_TO_BE_LOST) is None:
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
        if getattr(failure, "status", 0) > 128:
            if cause := self._heard():
                return cause  # `watching` stopped the ranks here
            failure = self.gone(SECONDS_TO_BE_LOST) or failure
        if isinstance(failure, RankFailed) and failure.lost_contact:
            deadline = time.monotonic() + SECONDS_TO_HEAR_THE_CAUSE
            while time.monotonic() < deadline:
                if cause := self._heard():
                    return cause
                if gone := self.gone(SECONDS_TO_BE_GONE):
                    failure = gone
                    break
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

    def gone(self, seconds: float) -> RankFailed | None:
        """That a node was not heard of for so long; None while all are."""
        for index in self.beats.silent(seconds):
            node = f"node {index + 1} of {len(self.members)} ({self.members[index].address})"
            return RankFailed(f"{node} is gone: nothing is heard of it any more{AND_NOW}")
        return None

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
        self.beats.end()

    def _heard(self) -> Exception | None:
        """What another node ended with; None while all is well."""
        try:
            if not self.messages.is_said("failure"):
                return None
            told = self.messages.hear("failure")
        except RuntimeError:
            where = f"the node at {self.endpoint} is gone, or cannot be reached any more"
            return HostGone(f"{where}{AND_NOW}")
        if told["refusal"]:
            return UserError(told["text"])
        return RankFailed(f"node {told['node']} ended: {told['text']}", told["status"])


def member_at(index: int) -> str:
    """The key of who is a run's node of this number."""
    return f"index/{index}"
