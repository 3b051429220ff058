"""Where ranks meet: network addresses, and PyTorch's key-value stores at them.

torch is imported only when a store is opened.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

from ..errors import UserError
from ..machine import Ranks, first_host, tell_lightning, unchanged_environment

HOST = "127.0.0.1"  # for a single node
FIRST_SRUN_PORT = 15000  # as in Lightning


def of_this_machine(host: str) -> str:
    """This machine's address towards a host; nothing is sent. If that is loopback, the host."""
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        towards = str(probe.getsockname()[0])
    # A machine's own name may resolve to 127.0.1.1 there, and to its real address elsewhere.
    return host if ip_address(towards).is_loopback else towards


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
ANSWER = 30
"""Seconds within which a store answers."""


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
    return _store(address, port, is_master=True, master_listen_fd=listening, **options)


def _store(host: str, port: int, **options: Any) -> Any:
    """PyTorch's TCPStore, without C++ stack traces when the server is gone: we report that.

    torch reads the log level when it is imported here. Ranks, which import torch themselves, keep
    their level.
    """
    with unchanged_environment(["TORCH_CPP_LOG_LEVEL"]):
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    return TCPStore(host, port, wait_for_workers=False, **options)


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

    torchrun already has a server at MASTER_ADDR, which outlives the ranks; otherwise rank 0 serves.
    """
    host, port = main_address(ranks)
    of_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if ranks.rank == 0 and not of_agents:
        return _serving_store(host, port)
    wait(lambda: _accepts_connections(host, port), deadline, late)
    with answered(host, port):
        store = _store(host, port, is_master=False, timeout=timedelta(seconds=ANSWER))
        return _new_store(store, ranks, host, deadline, late) if of_agents else store


def _accepts_connections(host: str, port: int) -> bool:
    with suppress(OSError):
        socket.create_connection((host, port), timeout=1).close()
        return True
    return False


def _new_store(of_agents: Any, ranks: Ranks, host: str, deadline: float, late: str) -> Any:
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
        wait(lambda: of_agents.check([answer]), deadline, late)
        address, _, port = of_agents.get(answer).decode().rpartition(":")
        store = _store(address, int(port), is_master=False, timeout=timedelta(seconds=ANSWER))
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

        wait(all_joined, deadline, late)
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": port}
    return store


def _serving_store(host: str, port: int = 0) -> Any:
    """A store in this process, which the process group will share."""
    options = {"multi_tenant": True, "timeout": timedelta(seconds=ANSWER)}
    if host in ("localhost", HOST):
        return listening_store(host, port, **options)
    return _store(host, port, is_master=True, **options)
