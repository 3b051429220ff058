"""What older versions of PyTorch cannot do: one table, and the line by which it is refused.

Torch is not imported: a command refuses before it is. A feature that works from the floor in
pyproject.toml on has no entry.
"""

from functools import cache
from importlib.metadata import version
from typing import NamedTuple

from .errors import UserError


class Needs(NamedTuple):
    """From which version on PyTorch can do something."""

    first: tuple[int, int]
    fault: str
    """What an older one does."""
    instead: str
    """What works there."""


TABLE = {
    # "[3] for chunk 0 has gradients None and is expecting to send gradients to stage 2"
    "strategy.schedule=zbv": Needs((2, 12), "has no gradients to send in this schedule", "1f1b"),
    # The same words, or "PipeliningMetadataError", or none of tokens can be asked for.
    "strategy=pipeline whose stages pass on what has no gradient": Needs(
        (2, 13), "waits for its gradient", "strategy.schedule=gpipe"
    ),
    # A gather in code that torch.compile makes has no gradient.
    "strategy.context with compile": Needs(
        (2, 12), "loses gradients of what other ranks gathered", "compile=none"
    ),
    # "expected scalar type Double but found Float", in a backward pass
    "activation_checkpointing=selective with compile in float64": Needs(
        (2, 13), "keeps attention's sums in float32", "activation_checkpointing=full"
    ),
    # A segmentation fault: parameters that are in no part are freed before it.
    "manual_backward with sharded parameters of the task itself": Needs(
        (2, 13), "ends the process in the backward pass", "strategy=ddp"
    ),
    # "aten.index_put_.default does not have a sharding strategy registered"
    "strategy=fsdp with Rprop": Needs(
        (2, 14), "cannot update shards by it", "another optimizer, such as AdamW, or strategy=ddp"
    ),
}


@cache
def installed() -> tuple[int, int]:
    """The version of torch here, without its last number."""
    major, minor = version("torch").split(".")[:2]
    return int(major), int(minor)


def require(asked: str) -> None:
    """Reject what the torch that is installed cannot do.

    Raises:
        UserError: That names the version that can.
    """
    if line := too_old(asked):
        raise UserError(line)


def too_old(asked: str, key: str | None = None) -> str | None:
    """Why the torch that is installed cannot do what is asked for; None where it can.

    Args:
        asked: As in the table, such as "strategy.schedule=zbv".
        key: What was typed, where the strategy is below another key.
    """
    needs = TABLE.get(asked)
    if needs is None or installed() >= needs.first:
        return None
    here, first = (".".join(map(str, each)) for each in (installed(), needs.first))
    return f"{key or asked}: torch {here} {needs.fault}; use {needs.instead}, or torch>={first}"
