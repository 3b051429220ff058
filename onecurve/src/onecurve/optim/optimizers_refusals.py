"""What an optimizer cannot do on the chosen device."""

from collections.abc import Iterator

from ..composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why it cannot be captured in a graph."""
    if run.get(f"{key}.capturable") is True and run.accelerator != "cuda":
        yield (
            f"{key}.capturable=true: is for graphs on a GPU, and this run is on "
            f"{run.accelerator}; use {key}.capturable=false"
        )
