"""Network addresses: where nodes meet, whether HOST is this machine, how others can reach it."""

import contextlib
import os
import re
import socket
import struct
from typing import TYPE_CHECKING

from ..machine import Ranks, first_host, tell_lightning

if TYPE_CHECKING:
    from omegaconf import DictConfig

FIRST_SRUN_PORT = 15000  # as in Lightning
SIOCGIFADDR = 0x8915  # Linux: get the address of a network interface


def rendezvous(config: "DictConfig") -> str | None:
    """`launch.rendezvous`, or the address that Kubeflow sets in its pods; None without both."""
    given: str | None = config.launch.rendezvous
    if given is not None:
        return str(given)
    if endpoint := os.environ.get("PET_RDZV_ENDPOINT"):
        return endpoint
    # A TrainJob of Kubeflow only sets torchrun's variables, without a prefix.
    for prefix in ("PET_", ""):
        place = [os.environ.get(f"{prefix}MASTER_{part}") for part in ("ADDR", "PORT")]
        if all(place):
            return ":".join(map(str, place))
    return None


def is_host_and_port(endpoint: str) -> bool:
    """Whether a string is HOST:PORT with a valid port."""
    match = re.fullmatch(r"[\w.-]+:(\d+)", endpoint)
    return match is not None and 1 <= int(match[1]) <= 65535


def is_here(host: str) -> bool:
    """Whether a host name or address is this machine's: only these can be bound."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def accepts_connections(host: str, port: int) -> bool:
    """Whether something listens at HOST:PORT."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def of_this_machine(host: str) -> str:
    """A host name that is this machine's, or else its address towards the host; nothing is sent."""
    if is_here(host):
        return host
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Name of the network interface that has an IPv4 address, such as "eth0"; None if not found."""
    try:
        import fcntl
    except ImportError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            # An interface without an address raises OSError.
            with contextlib.suppress(OSError):
                reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                if socket.inet_ntoa(reply[20:24]) == address:
                    return name
    return None


def name_interface(address: str) -> None:
    """Make gloo use the network of the name or address by which others reach this machine.

    By default gloo resolves the machine's own name, which may belong to another network.
    """
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        with contextlib.suppress(OSError):
            if interface := interface_of(socket.gethostbyname(address)):
                os.environ["GLOO_SOCKET_IFNAME"] = interface


def stay_on_this_machine(ranks: Ranks) -> None:
    """If all ranks are on this machine and meet on loopback, make gloo listen there only."""
    host = os.environ.get("MASTER_ADDR", "")
    if ranks.nodes == 1 and host in ("localhost", "127.0.0.1"):
        name_interface("127.0.0.1")


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
