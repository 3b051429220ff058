"""What the ranks of an entry do: train it, resume it, and compare both."""

import math
import shutil
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.accelerators import CUDAAccelerator

from ..parity.rows import points
from ..parity.runs import Asked, plain_trainer, watched
from ..parity.watch import LOSS, Curve, Watch
from .entries import TASKS, TOLERANCES, Entry

STEPS, SAVED_AFTER = 8, 6
"""In two epochs of four; the checkpoint is inside the second."""


class OneCard(CUDAAccelerator):
    """Puts every rank onto the first GPU, where Lightning wants one for each."""

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return list(range(int(devices)))

    @staticmethod
    def get_parallel_devices(devices: list[int]) -> list[torch.device]:
        return [torch.device("cuda", 0) for _ in devices]


def plain_run(task: str) -> dict[str, Any]:
    """What the others are held against: a plain Trainer on the CPU, in float32."""
    options = {"precision": "32-true", "accelerator": "cpu"}
    run = watched(_asked(task, None, options), Watch(), plain_trainer())
    return {"outcome": "measured", "loss": run.curves[LOSS]}


def checked(entry: Entry, device: str, plain: Curve | None) -> dict[str, Any]:
    """Train on the device, resume, and compare; nothing on other ranks than the first."""
    shares_card = device == "cuda" and entry.ranks > 1
    options = {
        "precision": entry.precision,
        "accelerator": OneCard() if shares_card else device,
        "devices": entry.ranks,
    }
    runs: list[Watch] = []
    for watch in (Watch(SAVED_AFTER), Watch()):
        strategy = entry.make_strategy()
        asked = _asked(entry.task, strategy, options)
        resumed_from = runs[0].checkpoint if runs else None
        runs.append(watched(asked, watch, {"strategy": strategy}, resumed_from))
    run, again = runs
    if dist.is_initialized():
        dist.barrier()
        if dist.get_rank():
            return {}
    assert run.checkpoint is not None
    shutil.rmtree(run.checkpoint.parent)
    after = [(step, loss) for step, loss in run.curves[LOSS] if step > SAVED_AFTER]
    resumed = _apart(after, again.curves[LOSS])
    apart = None if plain is None else _apart(plain, run.curves[LOSS])
    most_apart, most_resumed = TOLERANCES[entry.precision]
    reasons = [
        f"{what} is apart by {value:.1e}, and {most:.0e} is allowed"
        for what, value, most in (
            ("the loss of the CPU", apart, most_apart),
            ("the loss of a resumed run", resumed, most_resumed),
        )
        if value is not None and not value <= most
    ]
    return {
        "outcome": "differs" if reasons else "equal",
        "reason": "; ".join(reasons),
        "loss": run.curves[LOSS],
        "apart_from_cpu": apart,
        "apart_when_resumed": resumed,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }


def _asked(task: str, strategy: Any, options: dict[str, Any]) -> Asked:
    return Asked(*TASKS[task], strategy, options, STEPS, 0.0, seed=0)


def _apart(one: Curve, two: Curve) -> float:
    """The largest relative difference; infinite where there is nothing to compare."""
    return max((relative for _, _, relative in points(one, two)), default=math.inf)
