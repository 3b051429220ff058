"""Limits of what a comparison is asked."""

from typing import Annotated, TypedDict

from ...limits import Number

COMPLETE = True
"""A key that is not among these is none."""


class Limits(TypedDict, total=False):
    """By key."""

    steps: Annotated[int, Number(least=2)]
    tolerance: Annotated[float, Number(least=0, below=1)]
