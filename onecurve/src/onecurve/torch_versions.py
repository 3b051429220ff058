"""A table of features that need a newer PyTorch, and the error line for them.

Torch is not imported, because commands report the error before that. Features that work with the
lowest supported version (pyproject.toml) have no entry.
"""

from functools import cache
from importlib.metadata import version
from typing import NamedTuple

from .errors import UserError


class Needs(NamedTuple):
    """The first version of PyTorch for a feature, what older ones do, and what works with them."""

    first: tuple[int, int]
    fault: str
    instead: str


TABLE = {
    # Of what is added to a micro-batch of one sample, such as positions (1, T, width).
    **dict.fromkeys(
        ("strategy.schedule=interleaved_zero_bubble", "strategy.schedule=zbv"),
        Needs((2, 13), "gets gradients of some weights wrong in this schedule", "1f1b"),
    ),
    # The same message, or "PipeliningMetadataError", or token inputs cannot require gradients.
    "strategy=pipeline whose stages pass on what has no gradient": Needs(
        (2, 13), "waits for its gradient", "strategy.schedule=gpipe"
    ),
    # "expected scalar type Double but found Float", in a backward pass
    "activation_checkpointing=selective with compile in float64": Needs(
        (2, 13), "keeps attention's sums in float32", "activation_checkpointing=full"
    ),
    # A segmentation fault: parameters that are in no unit are freed before the backward pass.
    "manual_backward with sharded parameters of the task itself": Needs(
        (2, 13), "ends the process in the backward pass", "strategy=ddp"
    ),
}


@cache
def installed() -> tuple[int, int]:
    """The major and minor version of the installed torch."""
    major, minor = version("torch").split(".")[:2]
    return int(major), int(minor)


def require(asked: str) -> None:
    """Reject a feature that the installed torch does not support."""
    if line := too_old(asked):
        raise UserError(line)


def too_old(asked: str, key: str | None = None) -> str | None:
    """The error line if the installed torch does not support a feature of the table; else None.

    It names the feature, or the override `key`.
    """
    needs = TABLE.get(asked)
    if needs is None or installed() >= needs.first:
        return None
    here, first = (".".join(map(str, each)) for each in (installed(), needs.first))
    return f"{key or asked}: torch {here} {needs.fault}; use {needs.instead}, or torch>={first}"
