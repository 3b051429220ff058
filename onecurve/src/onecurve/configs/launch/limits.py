"""Limits of how processes start, and of where nodes meet."""

from typing import Annotated, TypedDict

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
