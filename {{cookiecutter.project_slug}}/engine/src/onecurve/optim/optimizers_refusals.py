"""What an optimizer cannot do on the chosen device."""

from collections.abc import Iterator

from ..plan import Plan


def refusals(plan: Plan, key: str) -> Iterator[str]:
    """Why it cannot be captured in a graph."""
    if plan.get(f"{key}.capturable") is True and plan.accelerator != "cuda":
        yield (
            f"{key}.capturable=true: is for graphs on a GPU, and this run is on "
            f"{plan.accelerator}; use {key}.capturable=false"
        )
