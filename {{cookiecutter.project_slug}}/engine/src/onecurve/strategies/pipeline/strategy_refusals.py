"""What `strategy=pipeline` cannot run."""

from collections.abc import Iterator

from ...plan import Plan
from ..shares import uneven_replicas, unshared_batch
from .limits import SCHEDULES, nearest, takes


def refusals(plan: Plan, key: str) -> Iterator[str]:
    """Why a schedule cannot run as asked."""
    strategy = plan.config.strategy
    schedule, microbatches = strategy.schedule, strategy.microbatches
    yield from uneven_replicas(plan, key)
    yield from unshared_batch(plan, strategy.replicas)
    if plan.get("trainer.sync_batchnorm"):
        yield (
            "trainer.sync_batchnorm=true: a pipeline takes BatchNorm's statistics over each "
            "micro-batch; use trainer.sync_batchnorm=false, or strategy=ddp"
        )
    limits = SCHEDULES[schedule]
    if limits.fixed and strategy.stages_per_rank not in ("auto", limits.stages_per_rank):
        yield (
            f"{key}.stages_per_rank={strategy.stages_per_rank}: {key}.schedule={schedule} has "
            f"{limits.stages_per_rank}; use {key}.stages_per_rank=auto, or "
            f"{key}.schedule=interleaved_1f1b"
        )
    ranks = plan.world_size // strategy.replicas
    share = (plan.batch_size or microbatches * strategy.replicas) // strategy.replicas
    wanted = nearest(schedule, min(microbatches, share), ranks, share)
    if microbatches > share:
        yield (
            f"{key}.microbatches={microbatches}: a pipeline has {share} samples of a batch; "
            f"use {key}.microbatches={wanted}"
        )
    if not takes(schedule, microbatches, ranks):
        yield (
            f"{key}.microbatches={microbatches}: {key}.schedule={schedule} on {ranks} ranks "
            f"cannot take that; use {key}.microbatches={wanted}, or {key}.schedule=gpipe"
        )
    if isinstance(strategy.balance, str) and strategy.balance != "auto":
        yield (
            f"{key}.balance={strategy.balance}: must be auto, or a list of the number of layers "
            f"of each stage, such as {key}.balance=[7,7]"
        )
