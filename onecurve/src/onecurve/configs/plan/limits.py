"""Limits of what a plan is asked."""

from typing import Annotated, Literal, TypedDict

from ...limits import Number
from ...strategies.pipeline.limits import Schedule

COMPLETE = True
"""A key that is not among these is none."""


class Limits(TypedDict, total=False):
    """By key."""

    gpu: Literal["a100", "h100", "h100-500w", "h200", "b200", "cpu"]
    schedule: Literal["auto"] | Schedule
    microbatches: Literal["auto"] | Annotated[int, Number(least=1)]
    activation_checkpointing: Literal["auto", "none", "selective", "full"]
    compile: Literal["none", "layer"]
    free: Annotated[float, Number(least=0, below=1)]
    top: Annotated[int, Number(least=1)]
    measure: bool
    picture: str | None
