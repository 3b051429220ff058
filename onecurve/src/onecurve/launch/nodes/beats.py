"""Which nodes of a run are still heard of: each adds to a number of its own, twice a second."""

import threading

from ..store import Messages

SECONDS_BETWEEN_BEATS = 0.5
# Of a node that ranks have lost contact with; and of one of which nothing else tells.
SECONDS_TO_BE_GONE = 5
SECONDS_TO_BE_LOST = 60


class Beats:
    """Listens to the nodes of a run, and is heard by them.

    Silence is counted in looks: a process that was held up itself takes nobody for gone.

    Args:
        messages: What the nodes share; listened to by a connection of its own, which never waits.
        count: How many nodes there are.
        own: Which of them this one is; None only listens.
    """

    def __init__(self, messages: Messages, count: int, own: int | None = None) -> None:
        self._messages = Messages(messages.store.clone())
        self._own = own
        self._heard = dict.fromkeys((each for each in range(count) if each != own), -1)
        self._misses = dict.fromkeys(self._heard, 0)
        self._done = threading.Event()

    def look(self) -> None:
        """Be heard, and hear of the others.

        Raises:
            RuntimeError: If the store is gone.
        """
        if self._own is not None:
            self._messages.count(beat(self._own), 1)
        for index, before in self._heard.items():
            self._heard[index] = self._messages.count(beat(index))
            self._misses[index] = self._misses[index] + 1 if self._heard[index] == before else 0

    def silent(self, seconds: float) -> list[int]:
        """The nodes of which nothing was heard for so long."""
        return [
            index
            for index, misses in self._misses.items()
            if misses * SECONDS_BETWEEN_BEATS >= seconds
        ]

    def begin(self) -> None:
        """Look twice a second from now on."""
        threading.Thread(target=self._go_on, name="beats", daemon=True).start()

    def end(self) -> None:
        """Be heard no more."""
        self._done.set()

    def _go_on(self) -> None:
        try:
            while not self._done.is_set():
                self.look()
                self._done.wait(SECONDS_BETWEEN_BEATS)
        except RuntimeError:
            return  # the store is gone, which is noticed elsewhere


def beat(index: int) -> str:
    """The key of a node's number."""
    return f"beat/{index}"
