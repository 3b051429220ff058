"""The nodes that come to a meeting: some may be killed, and come again, before all are there.

Each adds to a number of its own for as long as it waits. The one with the store looks who does, and
says who has met as soon as there are enough.
"""

import time
from typing import Any

from ..store import Member, Messages, wait

SECONDS_BETWEEN_LOOKS = 0.5
MET = "met"


class Arrivals:
    """Says who has met; lives where the store does.

    Args:
        messages: What the nodes share.
        nodes: How many are to meet.
    """

    def __init__(self, messages: Messages, nodes: int) -> None:
        self._messages = messages
        self._nodes = nodes
        self._heard: dict[int, int] = {}
        self._looked = 0.0

    def look(self) -> None:
        """See twice a second who has added to its number, and say who met once there are enough."""
        if time.monotonic() < self._looked + SECONDS_BETWEEN_LOOKS:
            return
        self._looked = time.monotonic()
        arrived = range(self._messages.count("arrived"))
        heard = {place: self._messages.count(_waits(place)) for place in arrived}
        there = [place for place in arrived if heard[place] > self._heard.get(place, heard[place])]
        self._heard = heard
        # The one with the store is, also before its second look.
        self._messages.say("there", max(len(there), 1))
        if len(there) >= self._nodes:
            self._messages.say(MET, there[: self._nodes])


def gather_living(
    messages: Messages, me: Member, nodes: int, deadline: float, missing: str
) -> list[Member] | None:
    """Wait until so many nodes are there at the same time.

    Args:
        messages: What the nodes share.
        me: This node.
        nodes: How many are to meet.
        deadline: When to give up.
        missing: What to say then; ``@`` stands for how many were there.

    Returns:
        What every node says of itself, in the order in which they came; None where so many have met
        without this one.

    Raises:
        UserError: If not enough of them come by the deadline.
        RuntimeError: If the store is gone, with the node that it lived in.
    """
    place = messages.count("arrived", 1) - 1
    messages.say(_member(place), me)
    arrivals = Arrivals(messages, nodes) if me.hosts else None

    def have_met() -> bool:
        if messages.is_said(MET):
            return True
        messages.count(_waits(place), 1)
        if arrivals:
            arrivals.look()
        return False

    def too_few() -> str:
        there: Any = messages.hear("there") if messages.is_said("there") else 1
        return missing.replace("@", str(there))

    wait(have_met, deadline, too_few)
    met = messages.hear(MET)
    if place not in met:
        return None
    members = [Member(*messages.hear(_member(each))) for each in met]
    messages.count("read", 1)
    return members


def _member(place: int) -> str:
    return f"member/{place}"


def _waits(place: int) -> str:
    return f"waits/{place}"
