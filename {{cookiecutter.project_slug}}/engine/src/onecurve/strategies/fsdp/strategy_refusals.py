"""What `strategy=fsdp` cannot run."""

from collections.abc import Iterator

from ...plan import Plan
from .. import process_group_refusals
from ..shares import uneven_replicas, unshared_batch


def refusals(plan: Plan, key: str) -> Iterator[str]:
    """Why its ranks cannot share parameters, or a batch."""
    yield from process_group_refusals.refusals(plan, key)
    yield from uneven_replicas(plan, key)
    yield from unshared_batch(plan, plan.world_size)
