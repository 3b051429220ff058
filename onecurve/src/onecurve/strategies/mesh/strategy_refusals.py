"""What `strategy=mesh` cannot run."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

from ...composed_run import ComposedRun
from .. import process_group_refusals
from ..pipeline.limits import SCHEDULES
from ..pipeline.strategy_refusals import refusals_of_schedule
from ..replica_refusals import unshared_batch
from .sizes import Sizes, filled

STRATEGIES = Path(__file__).parent.parent


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why the axes do not make the ranks, or cannot share what there is."""
    yield from process_group_refusals.refusals(run, key)
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
    yield from unshared_batch(run, sizes.data_parallel)
    if sizes.pipeline == 1:
        return
    yield from refusals_of_schedule(run, key, sizes.pipeline, sizes.data_parallel)
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
