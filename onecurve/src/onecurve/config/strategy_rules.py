"""What the strategies cannot run: combinations, one line for each, before torch is imported."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

from ..composed_run import ComposedRun
from ..strategies.mesh.sizes import Sizes, filled
from ..strategies.pipeline.limits import SCHEDULES, nearest, takes
from ..torch_versions import too_old

STRATEGIES = Path(__file__).parents[1] / "strategies"


def process_group(run: ComposedRun, key: str) -> Iterator[str]:
    """Refuse NCCL without a GPU."""
    if run.get(f"{key}.backend") == "nccl" and run.accelerator != "cuda":
        yield (
            f"{key}.backend=nccl: NCCL connects GPUs, and this run is on {run.accelerator}; use "
            f"{key}.backend=auto"
        )


def ddp(run: ComposedRun, key: str) -> Iterator[str]:
    """Why its ranks cannot share a batch."""
    yield from process_group(run, key)
    yield from _unshared_batch(run, run.world_size)


def dp(run: ComposedRun, key: str) -> Iterator[str]:
    """What is made of layers is not copied with them to other GPUs, in every step."""
    if run.accelerator == "cpu" or run.devices < 2:
        return
    asked = {
        f"{key}.activation_checkpointing": run.get(f"{key}.activation_checkpointing"),
        "compile": run.get("compile"),
    }
    for name, value in asked.items():
        if value not in (None, "none", False):
            yield f"{name}={value}: not for the copies that dp makes on GPUs; use strategy=ddp"


def fsdp(run: ComposedRun, key: str) -> Iterator[str]:
    """Why its ranks cannot share parameters, or a batch."""
    yield from process_group(run, key)
    yield from _uneven_replicas(run, key)
    yield from _unshared_batch(run, run.world_size)


def tensor(run: ComposedRun, key: str) -> Iterator[str]:
    """Why its ranks cannot share layers, or a batch."""
    yield from process_group(run, key)
    yield from _uneven_replicas(run, key)
    yield from _unshared_batch(run, run.config.strategy.replicas)


def pipeline(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the ranks cannot share layers and samples."""
    yield from process_group(run, key)
    replicas = run.config.strategy.replicas
    yield from _uneven_replicas(run, key)
    yield from _unshared_batch(run, replicas)
    yield from _schedule(run, key, run.world_size // replicas, replicas)


def _schedule(run: ComposedRun, key: str, ranks: int, shares: int) -> Iterator[str]:
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
    if line := too_old(f"strategy.schedule={schedule}", f"{key}.schedule={schedule}"):
        yield line
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


def mesh(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the axes do not make the ranks, or cannot share what there is."""
    yield from process_group(run, key)
    asked = {axis: run.get(f"{key}.{axis}", 1) for axis in Sizes._fields}
    try:
        sizes = filled(run.world_size, **asked)
    except ValueError:
        said = {axis: size for axis, size in asked.items() if size not in (1, "auto")}
        wanted = prod(map(int, said.values()))
        more = f", or trainer.devices={wanted}" if run.num_nodes == 1 else ""
        yield (
            f"{' '.join(f'{key}.{axis}={size}' for axis, size in said.items()) or key}: "
            f"{'a multiple of ' if asked['shard'] == 'auto' else ''}{wanted} ranks are needed, and "
            f"there are {run.world_size}; use {_instead(asked, run.world_size, key)}{more}"
        )
        return
    for axis in ("context", "tensor"):
        if getattr(sizes, axis) > 1 and not (STRATEGIES / axis).is_dir():
            yield (
                f"{key}.{axis}={getattr(sizes, axis)}: the folder onecurve/strategies/{axis} is "
                f"not there; use {key}.{axis}=1"
            )
    yield from _unshared_batch(run, sizes.data_parallel)
    if sizes.pipeline == 1:
        return
    yield from _schedule(run, key, sizes.pipeline, sizes.data_parallel)
    schedule = run.get(f"{key}.schedule")
    cut = sizes.shard * sizes.context * sizes.tensor > 1
    frees = run.get(f"{key}.reshard_after_forward") is True
    if cut and SCHEDULES[schedule].splits_backward and frees:
        yield (
            f"{key}.reshard_after_forward=true: {key}.schedule={schedule} computes gradients of "
            "weights later than those of inputs, and needs the parameters until then; use "
            f"{key}.reshard_after_forward=false, or {key}.schedule=1f1b"
        )


def _instead(asked: dict[str, int | str], ranks: int, key: str) -> str:
    """What to type: the other number of devices, or the largest sizes that fit."""
    left = ranks
    fits = []
    for axis, size in asked.items():
        if size in (1, "auto"):
            continue
        fit = max(number for number in range(1, int(size) + 1) if left % number == 0)
        left //= fit
        if fit != size:
            fits.append(f"{key}.{axis}={fit}")
    if left > 1 and asked["shard"] != "auto":
        fits = [each for each in fits if ".shard=" not in each] + [f"{key}.shard=auto"]
    return " ".join(fits) or f"{key}.shard=auto"


def _unshared_batch(run: ComposedRun, shares: int) -> Iterator[str]:
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


def _uneven_replicas(run: ComposedRun, key: str) -> Iterator[str]:
    """Refuse a number of replicas that leaves ranks over."""
    replicas = run.get(f"{key}.replicas", 1)
    if run.world_size % replicas:
        yield (
            f"{key}.replicas={replicas}: must divide the {run.world_size} ranks, such as "
            f"{key}.replicas=1"
        )
