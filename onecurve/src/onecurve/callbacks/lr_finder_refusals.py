"""What the search for a learning rate cannot do."""

from collections.abc import Iterator

from ..composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why its range is none."""
    lowest, highest = run.get(f"{key}.min_lr"), run.get(f"{key}.max_lr")
    if lowest is not None and highest is not None and lowest >= highest:
        yield f"{key}.min_lr={lowest}: must be below max_lr={highest}, such as {key}.min_lr=1e-6"
