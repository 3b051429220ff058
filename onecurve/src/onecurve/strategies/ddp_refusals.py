"""What `strategy=ddp` cannot run."""

from collections.abc import Iterator

from ..composed_run import ComposedRun
from . import process_group_refusals
from .replica_refusals import unshared_batch


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why its ranks cannot share a batch."""
    yield from process_group_refusals.refusals(run, key)
    yield from unshared_batch(run, run.world_size)
