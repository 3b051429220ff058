"""What `strategy=pipeline` cannot run."""

from collections.abc import Iterator

from ...composed_run import ComposedRun
from .. import process_group_refusals
from ..replica_refusals import uneven_replicas, unshared_batch
from .limits import SCHEDULES, nearest, takes


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the ranks cannot share layers and samples."""
    yield from process_group_refusals.refusals(run, key)
    replicas = run.config.strategy.replicas
    yield from uneven_replicas(run, key)
    yield from unshared_batch(run, replicas)
    yield from refusals_of_schedule(run, key, run.world_size // replicas, replicas)


def refusals_of_schedule(run: ComposedRun, key: str, ranks: int, shares: int) -> Iterator[str]:
    """Why a schedule cannot run as asked.

    Args:
        run: The facts of the run.
        key: Where the configuration has the strategy.
        ranks: Of one pipeline.
        shares: Pipelines that share a batch.
    """
    strategy = run.config.strategy
    schedule, microbatches = strategy.schedule, strategy.microbatches
    if run.get("trainer.sync_batchnorm"):
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
    if limits.splits_backward:
        instead = f"{key}.schedule=interleaved_1f1b"
        if strategy.activation_checkpointing == "selective":
            yield (
                f"{key}.activation_checkpointing=selective: {key}.schedule={schedule} splits the "
                "backward pass, and would ask twice for what was kept; use "
                f"{key}.activation_checkpointing=full, or {instead}"
            )
        if run.get("compile", "none") != "none":
            yield (
                f"compile={run.get('compile')}: {key}.schedule={schedule} splits the backward "
                f"pass, which compiled layers cannot; use compile=none, or {instead}"
            )
    share = (run.batch_size or microbatches * shares) // shares
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
            f"of each stage, such as '{key}.balance=[7,7]'"
        )
