"""What cannot be shared out among ranks: for the refusals of the strategies, without torch."""

from collections.abc import Iterator

from ..composed_run import ComposedRun


def unshared_batch(run: ComposedRun, shares: int) -> Iterator[str]:
    """Refuse a global batch with fewer samples than parts that it is cut into.

    Args:
        run: The facts of the run.
        shares: How many ranks, or groups of ranks, see samples of their own.
    """
    size = run.batch_size
    if size is not None and size < shares:
        yield (
            f"data.batch_size={size}: is shared by {shares} ranks, so it must be at least that; "
            f"use data.batch_size={shares}, or fewer trainer.devices"
        )


def uneven_replicas(run: ComposedRun, key: str) -> Iterator[str]:
    """Refuse a number of replicas that leaves ranks over."""
    replicas = run.get(f"{key}.replicas", 1)
    if run.world_size % replicas:
        yield (
            f"{key}.replicas={replicas}: must divide the {run.world_size} ranks, such as "
            f"{key}.replicas=1"
        )
