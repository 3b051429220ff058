"""A store for one attempt of the ranks that torchrun started.

That of torchrun's agents outlives the ranks: what those say who are gone is still in it, such as
the addresses at which the process group would wait for them. So ranks ask there who is of their
attempt, and their process group meets in a store that lives in rank 0.
https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import os
import uuid
from datetime import timedelta
from typing import Any

from ..surroundings import Ranks
from . import addresses
from .listening import HOST, listening_store, store_class
from .store import SECONDS_TO_ANSWER, Messages, gone, wait


def is_there() -> bool:
    """Whether ranks meet in a store of torchrun's agents."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def name_of_attempt(
    messages: Messages, ranks: Ranks, deadline: float, missing: str, endpoint: str
) -> str:
    """A name that those ranks alone know that live now.

    torchrun's number of restarts is none: it does not count those for a node that comes or goes.

    Args:
        messages: In the agents' store.
        ranks: This one among them.
        deadline: Until when all must have come, by the monotonic clock.
        missing: The refusal otherwise; @ in it stands for how many came.
        endpoint: HOST:PORT of the store.

    Raises:
        UserError: If not all of them come, or the store is gone.
    """
    try:
        if ranks.rank == 0:
            return _give_name(messages, ranks.world_size, deadline, missing)
        return _ask_for_name(messages, ranks.rank, deadline, missing)
    except RuntimeError:
        raise gone(endpoint) from None


def _give_name(messages: Messages, world_size: int, deadline: float, missing: str) -> str:
    name = uuid.uuid4().hex

    def who_know() -> int:
        came = [_came(rank) for rank in range(1, world_size)]
        asked = [str(messages.hear(key)) for key in came if messages.is_said(key)]
        # The dead have asked, too; they never confirm this answer.
        for question in asked:
            if not messages.is_said(_knows(name, question)):
                messages.say(f"answer/{question}", name)
        return sum(messages.is_said(_knows(name, question)) for question in asked)

    wait(
        lambda: who_know() == world_size - 1,
        deadline,
        lambda: missing.replace("@", str(1 + who_know())),
    )
    return name


def _ask_for_name(messages: Messages, rank: int, deadline: float, missing: str) -> str:
    question = uuid.uuid4().hex
    messages.say(_came(rank), question)
    answer = f"answer/{question}"
    wait(lambda: messages.is_said(answer), deadline, lambda: missing.replace("@", "1"))
    name = str(messages.hear(answer))
    messages.say(_knows(name, question), True)
    return name


def _came(rank: int) -> str:
    return f"came/{rank}"


def _knows(name: str, question: str) -> str:
    return f"knows/{name}/{question}"


def take_another(messages: Messages, ranks: Ranks, host: str) -> Any:
    """Let the process group of these ranks meet in a store of its own: by MASTER_ADDR and _PORT.

    Args:
        messages: Of this attempt alone.
        ranks: This one among them.
        host: Where the agents' store is.

    Returns:
        The store, which lives as long as rank 0 keeps this; None in the others.
    """
    store = None
    if ranks.rank == 0:
        store, address = _store(ranks, host)
        messages.say("store", [address, store.port])
    address, port = messages.hear("store")
    os.environ |= {"MASTER_ADDR": str(address), "MASTER_PORT": str(port)}
    return store


def _store(ranks: Ranks, host: str) -> tuple[Any, str]:
    """A new one in this process, and how all ranks reach it."""
    limit = timedelta(seconds=SECONDS_TO_ANSWER)
    if ranks.nodes == 1:
        return listening_store(HOST, timeout=limit), HOST
    address = host if addresses.is_here(host) else addresses.address_towards(host)
    # On every network, as that of the agents: this machine's own name may lead to its loopback.
    store = store_class()(address, 0, is_master=True, wait_for_workers=False, timeout=limit)
    return store, address
