"""What cannot be shared out among ranks: for the refusals of the strategies, without torch."""

from collections.abc import Iterator

from ..plan import Plan


def unshared_batch(plan: Plan, shares: int) -> Iterator[str]:
    """Refuse a global batch with fewer samples than parts that it is cut into.

    Args:
        plan: The facts of the run.
        shares: How many ranks, or groups of ranks, see samples of their own.
    """
    size = plan.batch_size
    if size is not None and size < shares:
        yield (
            f"data.batch_size={size}: is shared by {shares} ranks, so it must be at least that; "
            f"use data.batch_size={shares}, or fewer trainer.devices"
        )


def uneven_replicas(plan: Plan, key: str) -> Iterator[str]:
    """Refuse a number of replicas that leaves ranks over."""
    replicas = plan.get(f"{key}.replicas", 1)
    if plan.world_size % replicas:
        yield (
            f"{key}.replicas={replicas}: must divide the {plan.world_size} ranks, such as "
            f"{key}.replicas=1"
        )
