"""What `strategy=ddp` cannot run."""

from collections.abc import Iterator

from ..plan import Plan
from . import process_group_refusals
from .shares import unshared_batch


def refusals(plan: Plan, key: str) -> Iterator[str]:
    """Why its ranks cannot share a batch."""
    yield from process_group_refusals.refusals(plan, key)
    yield from unshared_batch(plan, plan.world_size)
