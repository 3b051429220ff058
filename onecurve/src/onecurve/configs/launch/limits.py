"""Limits of how processes start, and of where nodes meet."""

from collections.abc import Iterator
from typing import Annotated, TypedDict

from ...composed_run import ComposedRun
from ...launch import forkserver
from ...launch.addresses import is_host_and_port, rendezvous
from ...launch.secret import SHORTEST, secret_of
from ...limits import Existing, Number

COMPLETE = True
"""A key that is not among these is none."""


class Limits(TypedDict, total=False):
    """By key."""

    secret: str | None
    secret_file: Annotated[str, Existing("a file that holds what the nodes share")] | None
    rendezvous: str | None
    debug_rank: Annotated[int, Number(least=0)]
    max_restarts: Annotated[int, Number(least=0)]
    timeout_seconds: Annotated[float, Number(above=0)]


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the processes cannot be started, or the nodes cannot meet."""
    several = not run.one_process and run.world_size > 1
    if several and run.ranks is None and not forkserver.is_here():
        yield (
            f"strategy={run.strategy}: starts its processes by {forkserver.MISSING}; "
            f"use strategy=single or strategy=dp, or {forkserver.ELSEWHERE}"
        )
    typed, nodes = run.config.launch.rendezvous, run.num_nodes
    if run.ranks is not None and typed is not None:
        yield (
            f"launch.rendezvous={typed}: {run.ranks.starter} has started the ranks, "
            "which meet by themselves; use launch.rendezvous=null"
        )
    if nodes == 1 and typed is not None:
        yield (
            f"launch.rendezvous={typed}: one node has nobody to meet; add trainer.num_nodes=2, "
            "or use launch.rendezvous=null"
        )
    if (rank := run.get("launch.debug_rank", 0)) and rank >= max(1, run.world_size):
        yield (
            f"launch.debug_rank={rank}: this run has the ranks 0 to {run.world_size - 1}; "
            "use one of them, such as launch.debug_rank=0"
        )
    if (given := secret_of(run.config)) is not None and len(given) < SHORTEST:
        # Not the value, which may be half of a good one.
        yield (
            f"launch.secret: must have at least {SHORTEST} characters, the same on every node; "
            "such as launch.secret_file=FILE with what `openssl rand -hex 32` prints"
        )
    # What one node ignores may be left over in its environment.
    if nodes == 1 or run.ranks is not None:
        return
    place = rendezvous(run.config)
    if place is None:
        yield (
            f"trainer.num_nodes={nodes}: the nodes need a place to meet; add "
            "launch.rendezvous=HOST:PORT, where HOST is one of them, to the same command on every "
            "node"
        )
    elif not is_host_and_port(place):
        yield (
            f"launch.rendezvous={place}: must be HOST:PORT with a port from 1 to 65535, such as "
            "launch.rendezvous=10.0.0.1:29500"
        )
