"""Where the ranks of several nodes meet, for every attempt anew.

torchelastic's own rendezvous unpickles what is in its store, so that whoever reaches the store runs
code on every node; and each of its agents counts restarts for itself. Here the agents, which know
each other already, tell each other in signed JSON which attempt begins, and what it goes on from.
https://docs.pytorch.org/docs/stable/elastic/rendezvous.html
"""

import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)

from ...errors import say
from ...run.restart import Attempt
from .. import again, attempts, rendezvous
from ..listening import listening_store
from ..one_node import OneNode
from ..store import SECONDS_BETWEEN_LOOKS, SECONDS_TO_ANSWER
from .agents import Agents
from .beats import SECONDS_TO_BE_GONE
from .carried import carry

BACKEND = "several_nodes"


class SeveralNodes(OneNode):
    """Gives the agents a new store for every attempt, on the node of rank 0.

    Args:
        parameters: As for one node, and `timeout`: seconds that the nodes wait for each other.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        super().__init__(parameters)
        assert isinstance(rendezvous.current, Agents)
        self.others = rendezvous.current
        self.timeout = float(parameters.config["timeout_seconds"])
        self.store: Any = None

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all nodes have ended the attempt before, and take what the first says."""
        messages = self.others.messages
        try:
            # A node that came back begins where the others are.
            while messages.is_said(_attempt(self.begun)):
                self.begun += 1
            number, self.begun = self.begun, self.begun + 1
            messages.say(_waits(number, self.others.index), True)
            self._wait_for_all(number)
            self.others.look_again()
            if self.others.first:
                address = self.others.members[0].address
                self.store = listening_store(address)
                decided = attempts.decided(max(number, again.number()), self.run_dir)
                messages.say(_attempt(number), [address, self.store.port, decided])
            address, port, told = messages.hear(_attempt(number))
            attempt = Attempt(*told)
            if attempt.checkpoint:
                key, file = f"{_attempt(number)}/file", Path(attempt.checkpoint)
                carry(messages, key, file, self.others.index, len(self.others.members))
            if not self.others.first:
                limit = timedelta(seconds=SECONDS_TO_ANSWER)
                self.store = TCPStore(address, port, is_master=False, timeout=limit)
        except (RuntimeError, OSError) as error:
            raise RendezvousConnectionError(str(error)) from None
        attempts.begin(self.folder, attempt)
        index, count = self.others.index, len(self.others.members)
        return RendezvousInfo(self.store, index, count, RendezvousStoreInfo(address, port))

    def num_nodes_waiting(self) -> int:
        """How many nodes wait for the next attempt: then this one ends its ranks, too."""
        # `Agents.watching` hears of a store that is gone.
        with suppress(RuntimeError):
            return sum(map(self.others.messages.is_said, self._waiting(self.begun)))
        return 0

    def get_backend(self) -> str:
        """Name under which LaunchConfig finds it."""
        return BACKEND

    def _wait_for_all(self, number: int) -> None:
        deadline = time.monotonic() + self.timeout
        has_said = False
        while not self.others.messages.is_said(*self._waiting(number)):
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(f"not all nodes came within {self.timeout:g} s")
            if not has_said and (gone := self.others.gone(SECONDS_TO_BE_GONE)):
                where, _, _ = str(gone).partition(":")
                say(f"{where}; waiting {self.timeout:g} s for it to come back")
                has_said = True
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _waiting(self, number: int) -> list[str]:
        return [_waits(number, index) for index in range(len(self.others.members))]


def _attempt(number: int) -> str:
    return f"attempt/{number}"


def _waits(number: int, index: int) -> str:
    return f"attempt/{number}/waits/{index}"


def _handler(parameters: RendezvousParameters) -> RendezvousHandler:
    return SeveralNodes(parameters)


rendezvous_handler_registry.register(BACKEND, _handler)
