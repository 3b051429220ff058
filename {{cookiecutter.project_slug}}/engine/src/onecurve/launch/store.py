"""What processes that meet tell each other through a key-value store."""

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch.distributed.distributed_c10d import Store

SECONDS_TO_ANSWER = 30
SECONDS_BETWEEN_LOOKS = 0.1


class Member(NamedTuple):
    """What a process says of itself when it arrives. Members are sorted by address, then pid.

    torchelastic sorts nodes in the same way, so that rank 0 is on the first of them.
    """

    address: str
    pid: int
    run_dir: str
    typed: list[str]

    @classmethod
    def here(cls, config: "DictConfig", address: str) -> "Member":
        """This process.

        Args:
            config: What Hydra composed.
            address: How the others reach this machine.
        """
        run_dir = os.path.abspath(str(config.hydra.run.dir))
        typed = [str(override) for override in config.hydra.overrides.task]
        return cls(address, os.getpid(), run_dir, typed)


def gather(
    store: "Store",
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
        store.set(keys[place], json.dumps(me))
        wait(
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


def stay_until_read(store: "Store", count: int) -> None:
    """A refusal may end this process next, and the store with it, before the others have read."""
    deadline = time.monotonic() + SECONDS_TO_ANSWER
    while store.add("read", 0) < count and time.monotonic() < deadline:
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
