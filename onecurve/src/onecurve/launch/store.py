"""What processes that meet tell each other through a key-value store: JSON, signed."""

import hashlib
import hmac
import json
import os
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import surroundings
from ..errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch.distributed.distributed_c10d import Store

SECONDS_TO_ANSWER = 30
SECONDS_BETWEEN_LOOKS = 0.1


class Messages:
    """A store in which every value is signed with the secret of the run.

    Nothing is unpickled, so that what a stranger writes into the store runs no code; with a secret
    it is refused, too.

    Args:
        store: Where the values are.
        secret: `launch.secret`, or the empty text, which signs nothing that others could not.
    """

    def __init__(self, store: "Store", secret: str = "") -> None:
        self.store = store
        self.secret = secret.encode()

    def say(self, key: str, what: Any) -> None:
        """Leave something that JSON can hold for the others."""
        text = json.dumps(what)
        self.store.set(key, self._signature(key, text) + text)

    def hear(self, key: str) -> Any:
        """What somebody said, once it is there.

        Raises:
            UserError: If it is signed with another secret.
            RuntimeError: If the store is gone, or nobody says it.
        """
        said = self.store.get(key).decode(errors="replace")
        signature, text = said[:LENGTH], said[LENGTH:]
        if not hmac.compare_digest(signature.encode(), self._signature(key, text).encode()):
            raise UserError(
                "launch.secret: another secret was given where a message of this run comes from, "
                "or it comes from a stranger; give every node the same, and this run a place of "
                "its own: launch.rendezvous=HOST:PORT"
            )
        return json.loads(text)

    def is_said(self, *keys: str) -> bool:
        """Whether all of these are there to be heard."""
        return bool(self.store.check(list(keys)))

    def count(self, key: str, more: int = 0) -> int:
        """A number that everybody adds to."""
        return int(self.store.add(key, more))

    def _signature(self, key: str, text: str) -> str:
        return hmac.new(self.secret, f"{key} {text}".encode(), hashlib.sha256).hexdigest()


LENGTH = 2 * hashlib.sha256().digest_size


class Member(NamedTuple):
    """What a process says of itself when it arrives."""

    address: str
    pid: int
    run_dir: str
    typed: list[str]
    number: int | None = None
    """That of its node, as Kubeflow numbers them."""
    hosts: bool = False
    """Whether the store lives in it."""
    begun: bool = False
    """Whether its ranks had this run directory before."""

    def order(self) -> tuple[Any, ...]:
        """Nodes as they are numbered; without numbers that of the store is the first."""
        try:
            address = (int(ip_address(self.address)), "")
        except ValueError:
            address = (0, self.address)
        return self.number is None, self.number or 0, not self.hosts, address, self.pid

    @classmethod
    def here(cls, config: "DictConfig", address: str, hosts: bool = False) -> "Member":
        """This process.

        Args:
            config: What Hydra composed.
            address: How the others reach this machine.
            hosts: Whether the store lives in it.
        """
        run_dir = os.path.abspath(str(config.hydra.run.dir))
        # Here, because a script without a command line imports this module, too.
        from ..run.hidden import hide_in_words, typed

        words = hide_in_words(typed(config.hydra.overrides.task))
        number = surroundings.node_around().number
        return cls(address, os.getpid(), run_dir, words, number, hosts)


def gather(
    messages: Messages,
    place: int,
    me: Member,
    count: int,
    deadline: float,
    missing: str,
    endpoint: str,
) -> list[Member]:
    """What every member says, in order of their places.

    Raises:
        UserError: If not all of them come by the deadline, or the store is gone.
    """
    keys = [f"member/{number}" for number in range(count)]
    try:
        messages.say(keys[place], me)
        wait(
            lambda: messages.is_said(*keys),
            deadline,
            lambda: missing.replace("@", str(sum(messages.is_said(key) for key in keys))),
        )
        members = [Member(*messages.hear(key)) for key in keys]
        messages.count("read", 1)
    except RuntimeError:
        raise gone(endpoint) from None
    return members


def with_the_run_that_goes_on(members: list[Member]) -> list[Member]:
    """The first one with the run directory that others began in; it may have come since."""
    first = next(
        (members[0]._replace(run_dir=each.run_dir, begun=True) for each in members if each.begun),
        members[0],
    )
    return [first, *members[1:]]


def gone(endpoint: str) -> UserError:
    """The refusal where the store at HOST:PORT answers no more."""
    return UserError(
        f"{endpoint}: the process that the others met at has ended; what it printed says why; "
        "then start all of them again"
    )


def stay_until_read(messages: Messages, count: int, key: str = "read") -> None:
    """A refusal may end this process next, and the store with it, before the others have read."""
    deadline = time.monotonic() + SECONDS_TO_ANSWER
    while messages.count(key) < count and time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_LOOKS)


def wait(condition: Callable[[], bool], deadline: float, otherwise: Callable[[], str]) -> None:
    """Look again and again, so that Ctrl-C is heard between two looks.

    Raises:
        UserError: With what `otherwise` returns, once the deadline is over.
    """
    while not condition():
        if time.monotonic() > deadline:
            raise UserError(otherwise())
        time.sleep(SECONDS_BETWEEN_LOOKS)
