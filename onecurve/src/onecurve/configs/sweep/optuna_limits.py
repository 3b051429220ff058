"""Limits of what optuna.yaml adds to a sweep."""

from typing import Annotated, Literal, TypedDict

from ...limits import Number


class Limits(TypedDict, total=False):
    """By key."""

    trials: Annotated[int, Number(least=1)]
    value: Literal["last", "best"]
    seed: Annotated[int, Number(least=0, most=2**32 - 1)]
