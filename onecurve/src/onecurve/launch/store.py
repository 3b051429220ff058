"""PyTorch's key-value store, opened where it is meant to listen; and one for each attempt.

torch is imported only where a store is opened.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from ..errors import UserError
from ..surroundings import Ranks, unchanged_environment
from . import addresses

HOST = "127.0.0.1"  # of one node alone
BACKLOG = 2048
SECONDS_TO_ANSWER = 30


def listening_store(host: str, port: int = 0, **options: Any) -> Any:
    """A TCPStore whose server listens on the address of a host name alone.

    Args:
        host: A name or an address of this machine.
        port: A port that is free there; 0 takes any.
        options: Those of TCPStore.

    Raises:
        OSError: If the port is not free, or the address is not this machine's.
    """
    found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(found[0][4])
        # At once, or another could bind the same.
        server.listen(BACKLOG)
        address, port = server.getsockname()
        # The store closes it in the end.
        listening = server.detach()
    return store_class()(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening, **options
    )


def store_class() -> Any:
    """PyTorch's TCPStore, which shows no stack trace where it is gone: a line of ours says so.

    torch reads the level as it is imported here; ranks that import it by themselves do not see it.
    """
    with unchanged_environment(["TORCH_CPP_LOG_LEVEL"]):
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    return TCPStore


def wait(
    condition: Callable[[], bool],
    deadline: float,
    otherwise: Callable[[], str],
    seconds_between_looks: float = 0.1,
) -> None:
    """Poll, so that Ctrl-C takes effect between two looks.

    Raises:
        UserError: With what `otherwise` returns, once the deadline is over.
    """
    while not condition():
        if time.monotonic() > deadline:
            raise UserError(otherwise())
        time.sleep(seconds_between_looks)


def gone(endpoint: str) -> UserError:
    """The error where the store at HOST:PORT answers no more."""
    return UserError(
        f"{endpoint}: the process that the others met at has ended; what it printed says why; "
        "then start all of them again"
    )


def store_of_attempt(ranks: Ranks, deadline: float, missing: Callable[[int], str]) -> Any:
    """Where the ranks of one attempt meet, and their process group after them (`env://`).

    torchrun has a server at MASTER_ADDR already, which outlives the ranks; otherwise rank 0 serves.

    Raises:
        UserError: What `missing` says if only so many ranks have come by the deadline.
    """
    host, port = addresses.main_address(ranks)
    of_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = ranks.rank == 0 and not of_agents
    if not serves:
        wait(lambda: addresses.accepts_connections(host, port), deadline, lambda: missing(1))
    if serves:
        # The process group shares the server.
        return _serving_store(host, port)
    limit = timedelta(seconds=SECONDS_TO_ANSWER)
    store = store_class()(host, port, is_master=False, timeout=limit)
    if not of_agents:
        return store
    try:
        return _new_store(store, ranks, host, deadline, missing)
    except RuntimeError:
        raise gone(f"{host}:{port}") from None


def _new_store(
    of_agents: Any, ranks: Ranks, host: str, deadline: float, missing: Callable[[int], str]
) -> Any:
    """A store of this attempt alone, served by rank 0.

    In that of torchrun's agents is still what dead ranks left, such as the addresses at which the
    process group would wait for them. A rank asks with a name that only it knows, so that what it
    is answered comes from the rank 0 that lives; the number of restarts tells attempts apart only
    where no node came or went.
    """
    if ranks.rank > 0:
        question = uuid.uuid4().hex
        of_agents.set(f"came/{ranks.rank}", question)
        answer = f"answer/{question}"
        wait(lambda: of_agents.check([answer]), deadline, lambda: missing(1))
        address, _, port = of_agents.get(answer).decode().rpartition(":")
        limit = timedelta(seconds=SECONDS_TO_ANSWER)
        store = store_class()(address, int(port), is_master=False, timeout=limit)
        store.add("joined", 1)
    else:
        if ranks.nodes == 1:
            address = HOST
        else:
            address = host if addresses.is_here(host) else addresses.address_towards(host)
        store = _serving_store(address)
        port = str(store.port)

        def all_joined() -> bool:
            for rank in range(1, ranks.world_size):
                if of_agents.check([came := f"came/{rank}"]):
                    of_agents.set(f"answer/{of_agents.get(came).decode()}", f"{address}:{port}")
            return int(store.add("joined", 0)) == ranks.world_size - 1

        wait(all_joined, deadline, lambda: missing(1 + store.add("joined", 0)))
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": port}
    return store


def _serving_store(host: str, port: int = 0) -> Any:
    """A store in this process, on the network of a name of this machine."""
    options = {"multi_tenant": True, "timeout": timedelta(seconds=SECONDS_TO_ANSWER)}
    with suppress(OSError):
        # Debian lets a machine's own name lead to 127.0.1.1, where no other node comes.
        if host in ("localhost", HOST) or not socket.gethostbyname(host).startswith("127."):
            return listening_store(host, port, **options)
    return store_class()(host, port, is_master=True, wait_for_workers=False, **options)
