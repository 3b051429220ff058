"""Limits of every sweep."""

from typing import Annotated, Literal, TypedDict

from ...limits import Number


class Limits(TypedDict, total=False):
    """By key."""

    on_failure: Literal["continue", "stop", "retry"]
    retries: Annotated[int, Number(least=0)]
    parallel: Annotated[int, Number(least=1)]
