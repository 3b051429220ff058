"""Where ranks meet: network addresses, and PyTorch's key-value stores at them.

torch is imported only when a store is opened.
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
from ..machine import Ranks, first_host, tell_lightning, unchanged_environment

HOST = "127.0.0.1"  # for a single node
FIRST_SRUN_PORT = 15000  # as in Lightning


def accepts_connections(host: str, port: int) -> bool:
    """Whether something listens at HOST:PORT."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def of_this_machine(host: str) -> str:
    """A host name that is this machine's, or else its address towards the host; nothing is sent."""
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        towards = str(probe.getsockname()[0])
    # A machine's own name may resolve to 127.0.1.1 there, and to its real address elsewhere.
    is_here = str(address[0]).startswith("127.") or address[0] in (towards, "::1")
    return host if is_here else towards


def gloo_on_loopback() -> None:
    """Make gloo listen on this machine alone, unless GLOO_SOCKET_IFNAME says otherwise.

    By default it resolves the machine's own name, which is an address on a network.
    """
    loopback = {"lo", "lo0"}.intersection(name for _, name in socket.if_nameindex())
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", *loopback)


def stay_on_this_machine(ranks: Ranks) -> None:
    """If all ranks are on this machine and meet on loopback, make gloo listen there only."""
    if ranks.nodes == 1 and os.environ.get("MASTER_ADDR", "") in ("localhost", HOST):
        gloo_on_loopback()


def main_address(ranks: Ranks) -> tuple[str, int]:
    """Host and port of rank 0; sets the environment variables that Lightning reads."""
    if ranks.starter == "srun":
        tell_lightning(ranks)
        hosts = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST")
        host = os.environ.setdefault("MASTER_ADDR", first_host(hosts or "127.0.0.1"))
        # All tasks of a job compute the same port, and other jobs on these nodes another one.
        port = FIRST_SRUN_PORT + int(os.environ.get("SLURM_JOB_ID", "0")[-4:])
        return host, int(os.environ.setdefault("MASTER_PORT", str(port)))
    # Lightning recognises torchrun by this variable, which older launchers do not set.
    os.environ.setdefault("TORCHELASTIC_RUN_ID", "none")
    host = os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    return host, int(os.environ.setdefault("MASTER_PORT", "29500"))


BACKLOG = 2048
ANSWER = timedelta(seconds=30)


def listening_store(host: str, port: int = 0, **options: Any) -> Any:
    """A TCPStore whose server listens on the address of one host name of this machine only.

    Port 0 is any free one. Another that is not free, or another machine's address, is an OSError.
    """
    found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(found[0][4])
        # At once, because another process could bind the same port until then.
        server.listen(BACKLOG)
        address, port = server.getsockname()
        # The store closes the descriptor when it ends.
        listening = server.detach()
    return _store_class()(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening, **options
    )


def joined_store(host: str, port: int) -> Any:
    """The TCPStore whose server another process has."""
    return _store_class()(host, port, is_master=False, timeout=ANSWER)


def _store_class() -> Any:
    """PyTorch's TCPStore, without C++ stack traces when the server is gone: we report that.

    torch reads the log level when it is imported here. Ranks, which import torch themselves, keep
    their level.
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
    """Poll a condition, so that Ctrl-C takes effect; after the deadline a UserError says why."""
    while not condition():
        if time.monotonic() > deadline:
            raise UserError(otherwise())
        time.sleep(seconds_between_looks)


def gone(endpoint: str) -> UserError:
    """The error for a store at HOST:PORT that no longer answers."""
    return UserError(
        f"{endpoint}: the process at which the others met has ended; see its output for the "
        "reason, then start all of them again"
    )


def store_of_attempt(ranks: Ranks, deadline: float, missing: Callable[[int], str]) -> Any:
    """The store at which the ranks of one attempt meet, and later their process group (`env://`).

    torchrun already has a server at MASTER_ADDR, which outlives the ranks; otherwise rank 0 serves.
    """
    host, port = main_address(ranks)
    of_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serves = ranks.rank == 0 and not of_agents
    if serves:
        # The process group shares the server.
        return _serving_store(host, port)
    wait(lambda: accepts_connections(host, port), deadline, lambda: missing(1))
    store = joined_store(host, port)
    if not of_agents:
        return store
    try:
        return _new_store(store, ranks, host, deadline, missing)
    except RuntimeError:
        raise gone(f"{host}:{port}") from None


def _new_store(
    of_agents: Any, ranks: Ranks, host: str, deadline: float, missing: Callable[[int], str]
) -> Any:
    """A store for this attempt only, served by rank 0.

    The store of torchrun's agents still holds values that dead ranks have set, such as addresses
    at which the process group would wait for them. So a rank asks for the new store's address with
    a random name, and only the living rank 0 answers that. The number of restarts would not do: it
    does not change when nodes come or leave.
    """
    if ranks.rank > 0:
        question = uuid.uuid4().hex
        of_agents.set(f"came/{ranks.rank}", question)
        answer = f"answer/{question}"
        wait(lambda: of_agents.check([answer]), deadline, lambda: missing(1))
        address, _, port = of_agents.get(answer).decode().rpartition(":")
        store = joined_store(address, int(port))
        store.add("joined", 1)
    else:
        address = HOST if ranks.nodes == 1 else of_this_machine(host)
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
    """A store in this process that listens on the network of one of this machine's names."""
    options = {"multi_tenant": True, "timeout": ANSWER}
    with suppress(OSError):
        # On Debian a machine's own name resolves to 127.0.1.1, which other nodes cannot reach.
        if host in ("localhost", HOST) or not socket.gethostbyname(host).startswith("127."):
            return listening_store(host, port, **options)
    return _store_class()(host, port, is_master=True, wait_for_workers=False, **options)
