"""How much of a parameter one rank holds. Needs no torch: a planner asks for thousands of ranks."""

from collections.abc import Sequence
from math import prod

HEADS = ("in_proj_weight", "in_proj_bias", "out_proj.weight")


def local_numel(style: str, name: str, shape: Sequence[int], size: int) -> int:
    """Numbers of a parameter that one rank holds.

    Args:
        style: Of the module in the plan; any other word for one that is not in it.
        name: The parameter's name within that module, such as "weight" or "out_proj.weight".
        shape: Of the whole parameter.
        size: How many ranks share layers.
    """
    cut = {
        "colwise": ("weight", "bias"),
        "colwise_gather": ("weight", "bias"),
        "vocab": ("weight", "bias"),
        "rowwise": ("weight",),
        "heads": HEADS,
    }
    numbers = prod(shape)
    return numbers // size if name in cut.get(style, ()) else numbers
