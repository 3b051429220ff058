"""A node that was killed and comes back takes the place that it had."""

import time

from ...errors import UserError
from ..store import Member, Messages, wait
from .agents import member_at
from .beats import SECONDS_BETWEEN_BEATS, SECONDS_TO_BE_GONE, Beats, beat


def take_place(
    messages: Messages, me: Member, nodes: int, again: bool, deadline: float, taken: UserError
) -> tuple[list[Member], int]:
    """Take the place of a node of a run that nothing is heard of any more.

    Args:
        messages: What the nodes of the run share.
        me: This node, which came when all of them had met.
        nodes: How many they are.
        again: Whether the others wait for one that is gone (`launch.max_restarts`). Else they end
            soon, and this waits for it.
        deadline: When to give up.
        taken: What to raise where all places are taken.

    Returns:
        The nodes, this one among them, and its place.

    Raises:
        UserError: If all of them are there.
        RuntimeError: If the run has ended.
    """
    keys = [member_at(index) for index in range(nodes)]
    wait(lambda: messages.is_said(*keys), deadline, lambda: str(taken))
    beats = Beats(messages, nodes)
    for _ in range(int(SECONDS_TO_BE_GONE / SECONDS_BETWEEN_BEATS) + 2):
        beats.look()
        time.sleep(SECONDS_BETWEEN_BEATS)
    members = [Member(*messages.hear(key)) for key in keys]
    gone = [
        index
        for index in beats.silent(SECONDS_TO_BE_GONE)
        if me.number in (None, members[index].number)
    ]
    if gone and not again:
        wait(lambda: messages.count("arrived") == 0, deadline, lambda: str(taken))
    for index in gone:
        # Of two that come for it, one.
        if messages.count(f"taken/{index}/{messages.count(beat(index))}", 1) == 1:
            members[index] = me._replace(run_dir=members[0].run_dir)
            return members, index
    raise taken
