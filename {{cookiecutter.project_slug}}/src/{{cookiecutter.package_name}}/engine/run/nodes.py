"""What the agents of several nodes tell each other while a run lasts: that one of them failed.

Ranks of other nodes may wait for a dead one until a collective times out, so an agent ends its own
ranks as soon as another says that it has ended. The first cause is what all of them show.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import UserError
from .launch import RankFailed
from .meeting import Meeting

SECONDS_BETWEEN_LOOKS = 0.5
# Ranks that lost contact end by themselves, and that is told apart better.
SECONDS_TO_END_ALONE = 4
SECONDS_TO_HEAR_THE_CAUSE = 10
SECONDS_TO_LEAVE = 15


@contextmanager
def watching(meeting: Meeting) -> Iterator[None]:
    """End this node's ranks, by SIGHUP to their agent, some seconds after another node failed."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SECONDS_BETWEEN_LOOKS):
            if heard(meeting) is None:
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


def heard(meeting: Meeting) -> Exception | None:
    """What another node ended with; None while all is well."""
    try:
        if not meeting.store.check(["failure"]):
            return None
        told = json.loads(meeting.store.get("failure"))
    except RuntimeError:
        return RankFailed(f"the node at {meeting.endpoint} is gone, or cannot be reached any more")
    if told["refusal"]:
        return UserError(told["text"])
    return RankFailed(f"node {told['node']} ended: {told['text']}", told["status"])


def agree(meeting: Meeting, failure: Exception) -> Exception:
    """The failure that this node should end with, which may be another's.

    Args:
        meeting: The nodes of this run.
        failure: What this node's ranks ended with.
    """
    if getattr(failure, "status", 0) > 128 and (cause := heard(meeting)):
        return cause  # `watching` stopped the ranks here
    if isinstance(failure, RankFailed) and failure.lost_contact:
        deadline = time.monotonic() + SECONDS_TO_HEAR_THE_CAUSE
        while time.monotonic() < deadline:
            if cause := heard(meeting):
                return cause
            time.sleep(SECONDS_BETWEEN_LOOKS)
    told = {
        "node": meeting.members[meeting.index].address,
        "text": str(failure).splitlines()[0],
        "refusal": isinstance(failure, UserError),
        "status": getattr(failure, "status", 1),
    }
    try:
        if not meeting.store.check(["failure"]):
            meeting.store.set("failure", json.dumps(told))
    except RuntimeError:
        pass  # the node with the store is gone, and the others see that
    return failure


def leave(meeting: Meeting) -> None:
    """Wait until every node has ended its ranks: the store must outlive them, and so must logs."""
    deadline = time.monotonic() + SECONDS_TO_LEAVE
    try:
        left = int(meeting.store.add("left", 1))
        while left < len(meeting.members) and time.monotonic() < deadline:
            time.sleep(SECONDS_BETWEEN_LOOKS / 5)
            left = int(meeting.store.add("left", 0))
    except RuntimeError:
        pass  # the node with the store has left
