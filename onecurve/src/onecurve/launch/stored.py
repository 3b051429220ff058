"""Checkpoints at addresses, before ranks start: the run's own is claimed, others are fetched.

The first process of a run asks what is there, and all take that: what is there may change before
the last of them comes. Each machine has a copy of its own.
"""

from pathlib import Path
from typing import Any

from ..checkpoint.remote import claim, fetch, find, is_address
from . import again, rendezvous

# A key of the configuration, and what is typed for it.
FETCHED = {"resume": "resume", "checkpoint": "checkpoint", "init.file": "init"}


def with_copies(config: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """The configuration in which copies on this machine stand for checkpoints at addresses.

    Args:
        config: The resolved configuration.
        run_dir: That of the run, whose `checkpoint.mirror_to` becomes its own.

    Raises:
        UserError: If something is not there, or if the address to send to is another run's.
    """
    for key, typed in FETCHED.items():
        first, _, last = key.partition(".")
        group = config.get(first)
        address = group.get(last) if last and isinstance(group, dict) else group
        if isinstance(address, str) and is_address(address):
            copy = str(_copied(typed, address))
            config = {**config, first: {**group, last: copy} if isinstance(group, dict) else copy}
    settings = config.get("checkpoint")
    if isinstance(settings, dict) and (address := settings.get("mirror_to")):
        goes_on = config.get("resume") is not None or again.number() > 0
        rendezvous.first_says("mirror", lambda: claim(str(address), run_dir, goes_on))
    return config


def _copied(typed: str, address: str) -> Path:
    found = rendezvous.first_says(f"at/{typed}", lambda: find(typed, address))
    return fetch(typed, address, found)
