"""Limits of how processes start, and of where nodes meet."""

from collections.abc import Iterator
from typing import Annotated, TypedDict

from ...launch import forkserver
from ...launch.addresses import is_host_and_port, rendezvous
from ...launch.secret import SHORTEST, secret_of
from ...limits import Existing, Number
from ...plan import Plan

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


def refusals(plan: Plan, key: str) -> Iterator[str]:
    """Why the processes cannot be started, or the nodes cannot meet."""
    several = not plan.one_process and plan.world_size > 1
    if several and plan.ranks is None and not forkserver.is_here():
        yield (
            f"strategy={plan.strategy}: starts its processes by {forkserver.MISSING}; "
            f"use strategy=single or strategy=dp, or {forkserver.ELSEWHERE}"
        )
    typed, nodes = plan.config.launch.rendezvous, plan.num_nodes
    if plan.ranks is not None and typed is not None:
        yield (
            f"launch.rendezvous={typed}: {plan.ranks.starter} has started the ranks, "
            "which meet by themselves; use launch.rendezvous=null"
        )
    if nodes == 1 and typed is not None:
        yield (
            f"launch.rendezvous={typed}: one node has nobody to meet; add trainer.num_nodes=2, "
            "or use launch.rendezvous=null"
        )
    if (rank := plan.get("launch.debug_rank", 0)) and rank >= max(1, plan.world_size):
        yield (
            f"launch.debug_rank={rank}: this run has the ranks 0 to {plan.world_size - 1}; "
            "use one of them, such as launch.debug_rank=0"
        )
    if (given := secret_of(plan.config)) is not None and len(given) < SHORTEST:
        # Not the value, which may be half of a good one.
        yield (
            f"launch.secret: must have at least {SHORTEST} characters, the same on every node; "
            "such as launch.secret_file=FILE with what `openssl rand -hex 32` prints"
        )
    # What one node ignores may be left over in its environment.
    if nodes == 1 or plan.ranks is not None:
        return
    place = rendezvous(plan.config)
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
