"""Where ranks meet: PyTorch's key-value stores, at loopback or at the node of rank 0.

torch is imported only when a store is opened.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from ..errors import UserError
from ..machine import Ranks, first_host, tell_lightning, unchanged_environment

HOST = "127.0.0.1"  # for a single node
FIRST_SRUN_PORT = 15000  # as in Lightning
BACKLOG = 2048
OF_AGENTS = "TORCHELASTIC_USE_AGENT_STORE"
PORT_OF_RANK_0 = "onecurve/port"


def gloo_on_loopback() -> None:
    """Make gloo listen on this machine alone, unless GLOO_SOCKET_IFNAME says otherwise.

    By default it resolves the machine's own name, which is an address on a network.
    """
    loopback = {"lo", "lo0"}.intersection(name for _, name in socket.if_nameindex())
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", *loopback)


def main_address(ranks: Ranks) -> tuple[str, int]:
    """Host and port of rank 0; sets the environment variables that Lightning reads."""
    port = 29500
    host = HOST
    if ranks.starter == "srun":
        tell_lightning(ranks)
        hosts = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST")
        host = first_host(hosts or HOST)
        # All tasks of a job compute the same port, and other jobs on these nodes another one.
        port = FIRST_SRUN_PORT + int(os.environ.get("SLURM_JOB_ID", "0")[-4:])
    # Lightning recognises torchrun by this variable, which older launchers do not set.
    os.environ.setdefault("TORCHELASTIC_RUN_ID", "none")
    host = os.environ.setdefault("MASTER_ADDR", host)
    return host, int(os.environ.setdefault("MASTER_PORT", str(port)))


def listening_store(host: str, port: int = 0) -> Any:
    """A TCPStore whose server listens on the address of one host name of this machine only.

    Port 0 is any free one. Another that is not free, or another machine's address, is an OSError.
    """
    addresses = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(addresses[0][4])
        # At once, because another process could bind the same port until then.
        server.listen(BACKLOG)
        address, port = server.getsockname()
        # The store closes the descriptor when it ends.
        return _store(address, port, is_master=True, master_listen_fd=server.detach())


def _store(host: str, port: int, **options: Any) -> Any:
    """PyTorch's TCPStore, without C++ stack traces when the server is gone: we report that.

    torch reads the log level when it is imported here. Ranks, which import torch themselves, keep
    their level. Several tenants: the process group (`env://`) shares a server in its process.
    """
    with unchanged_environment(["TORCH_CPP_LOG_LEVEL"]):
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    return TCPStore(host, port, wait_for_workers=False, multi_tenant=True, **options)


def wait(condition: Callable[[], bool], deadline: float, late: str) -> None:
    """Poll a condition, so that Ctrl-C takes effect; after the deadline a UserError says why."""
    while not condition():
        if time.monotonic() > deadline:
            raise UserError(late)
        time.sleep(0.02)


@contextmanager
def answered(host: str, port: int) -> Iterator[None]:
    """Within the context, a store that no longer answers is an error of one line."""
    try:
        yield
    except RuntimeError:
        raise UserError(
            f"{host}:{port}: the process at which the others met has ended; see its output for the "
            "reason, then start all of them again"
        ) from None


def store_of_attempt(ranks: Ranks, deadline: float, late: str) -> Any:
    """The store at which the ranks of one attempt meet, and later their process group (`env://`).

    Rank 0 serves it. torchrun already has one at MASTER_ADDR, which outlives the ranks and keeps
    what dead ones have set, such as addresses at which the process group would wait for them: there
    the ranks find only the port of rank 0's.
    """
    host, port = main_address(ranks)
    if os.environ.get(OF_AGENTS) != "True":
        if ranks.rank == 0:
            return _serve(host, port)
        wait(lambda: _accepts_connections(host, port), deadline, late)
        with answered(host, port):
            return _store(host, port)
    wait(lambda: _accepts_connections(host, port), deadline, late)
    with answered(host, port):
        agents = _store(host, port)
        address = HOST if ranks.nodes == 1 else host
        if ranks.rank == 0:
            store = _serve(address)
            agents.set(PORT_OF_RANK_0, str(store.port))
        else:
            store = _joined(agents, address, f"rank {ranks.rank}", deadline, late)
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(store.port)}
    return store


def _joined(agents: Any, host: str, name: str, deadline: float, late: str) -> Any:
    """The store of the living rank 0: until it has set its port, that of a dead one is there.

    The number of restarts would not tell them: it starts anew on a node that comes back.
    """
    joined: list[Any] = []

    def joins() -> bool:
        port = int(agents.get(PORT_OF_RANK_0)) if agents.check([PORT_OF_RANK_0]) else 0
        if port and _accepts_connections(host, port):
            with suppress(RuntimeError):
                # Not the default of minutes: who has accepted may be about to end.
                store = _store(host, port, timeout=timedelta(seconds=10))
                # An earlier rank of this number was there: it is of an attempt that has failed.
                joined.extend([store] if store.add(name, 1) == 1 else [])
        return bool(joined)

    wait(joins, deadline, late)
    return joined[0]


def _serve(host: str, port: int = 0) -> Any:
    if host in ("localhost", HOST):
        return listening_store(host, port)
    return _store(host, port, is_master=True)


def _accepts_connections(host: str, port: int) -> bool:
    with suppress(OSError):
        socket.create_connection((host, port), timeout=1).close()
        return True
    return False
