"""The checkpoint that a restart goes on from, for nodes that do not see the first one's disk."""

import base64
import os
from pathlib import Path
from time import monotonic, sleep

from ..store import SECONDS_TO_ANSWER, Messages

# PyTorch's store hangs up on whoever sends more than 8 MiB, and a piece grows by a third.
BYTES_AT_ONCE = 4 * 2**20
SECONDS_BETWEEN_PIECES = 0.01


def carry(messages: Messages, key: str, file: Path, index: int, nodes: int) -> None:
    """See to it that a file is on the disks of all nodes; called by all of them.

    A node that has a file of the same size and time takes it for the same, as it is on a shared
    disk. Else it goes through the store, in signed pieces; a folder does not.

    Args:
        messages: What the nodes share.
        key: Of this file alone.
        file: Where it is on the first node, and will be on the others.
        index: Which node this one is; 0 is the first.
        nodes: How many there are.

    Raises:
        RuntimeError: If a node is gone.
        OSError: If the disk cannot take it.
    """
    if index == 0:
        found = file.stat()
        messages.say(key, [found.st_size, found.st_mtime_ns, file.is_file()])
    size, changed, is_file = messages.hear(key)
    if index > 0:
        lacks = is_file and not _is_there(file, size, changed)
        messages.say(f"{key}/lacks/{index}", lacks)
        if lacks:
            _receive(messages, key, file, size, changed)
        return
    lacking = sum(bool(messages.hear(f"{key}/lacks/{other}")) for other in range(1, nodes))
    if lacking:
        _send(messages, key, file, lacking)


def _is_there(file: Path, size: int, changed: int) -> bool:
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    return (found.st_size, found.st_mtime_ns) == (size, changed)


def _send(messages: Messages, key: str, file: Path, lacking: int) -> None:
    with file.open("rb") as source:
        number = 0
        while piece := source.read(BYTES_AT_ONCE):
            name = f"{key}/{number}"
            messages.say(name, base64.b64encode(piece).decode())
            _wait_for(messages, f"{name}/read", lacking)
            messages.store.delete_key(name)
            number += 1


def _receive(messages: Messages, key: str, file: Path, size: int, changed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    arriving = file.with_name(f".{file.name}.arriving")
    with arriving.open("wb") as target:
        for number in range(-(-size // BYTES_AT_ONCE)):
            name = f"{key}/{number}"
            target.write(base64.b64decode(messages.hear(name)))
            messages.count(f"{name}/read", 1)
        target.flush()
        os.fsync(target.fileno())
    os.utime(arriving, ns=(changed, changed))
    arriving.replace(file)


def _wait_for(messages: Messages, key: str, count: int) -> None:
    deadline = monotonic() + SECONDS_TO_ANSWER
    while messages.count(key) < count:
        if monotonic() > deadline:
            raise RuntimeError("a node that was sent the checkpoint to go on from is gone")
        sleep(SECONDS_BETWEEN_PIECES)
