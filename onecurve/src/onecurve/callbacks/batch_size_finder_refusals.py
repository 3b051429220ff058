"""What the search for a batch size cannot do."""

from collections.abc import Iterator

from ..composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why it cannot search with this strategy, or in this range."""
    if not run.one_process:
        yield (
            "callbacks=batch_size_finder: a rank that runs out of memory leaves the others "
            f"waiting, so it is not for strategy={run.strategy}; find the size of a device with "
            "strategy=single, and multiply"
        )
    first, largest = run.get(f"{key}.first", 1), run.get(f"{key}.largest", 1)
    if first > largest:
        yield f"{key}.first={first}: must be at most largest={largest}, such as {key}.first=1"
