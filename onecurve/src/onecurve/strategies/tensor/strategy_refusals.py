"""What `strategy=tensor` cannot run."""

from collections.abc import Iterator

from ...composed_run import ComposedRun
from .. import process_group_refusals
from ..replica_refusals import uneven_replicas, unshared_batch


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why its ranks cannot share layers, or a batch."""
    yield from process_group_refusals.refusals(run, key)
    yield from uneven_replicas(run, key)
    yield from unshared_batch(run, run.config.strategy.replicas)
