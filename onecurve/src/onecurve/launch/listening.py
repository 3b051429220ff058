"""A key-value store that listens where it is meant to, and not on every network of the machine."""

import os
import socket
from typing import Any

from .environment import unchanged_environment

HOST = "127.0.0.1"  # of one node alone
BACKLOG = 2048


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
