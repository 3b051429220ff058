"""What is measured: a transformer of 1 billion parameters and ResNet-50, beside other loops.

The loops take turns, each time in a process of its own, so that neither a warm card nor what
another has left favours one. The first turn compiles into an empty cache: its first step counts.

The share of our code is that of five more steps, by cProfile: time in functions of this package,
and in what they call of C. Profiling makes Python slower, so the share is an upper bound; what
autograd's own threads run is not in it.
"""

import cProfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

import onecurve
from onecurve.planner.hardware import HARDWARE, Hardware, cpu
from onecurve.planner.meshes import best
from onecurve.planner.network import Network, Precision, Request
from onecurve.strategies.layers import find_layers
from onecurve.strategies.mesh.sizes import Sizes

from .loops import LOOPS, OURS, SETTINGS, run
from .tasks import Size, transformer

OF_US = str(Path(onecurve.__file__).parent)
NAMES = {f"{network} {loop}": (network, loop) for network in SETTINGS for loop in LOOPS}
PROFILE = "large profile"
# Each differs in one thing, or in what goes together, from what is measured beside other loops.
CHANGES: dict[str, dict[str, Any]] = {
    "large, optimizer.fused=false": {"fused": False},
    "large, the loss in 8 chunks": {"chunks": 8},
    "large, strategy.reshard_after_forward=false": {"reshard": False},
    "large, strategy=single": {"sharded": False},
    "large, compile=whole": {"compiled": "whole"},
    "large, compile=none": {"compiled": "none"},
    "large, twice the batch": {"batch": 2},
    "large, twice the batch, the loss in 8 chunks": {"batch": 2, "chunks": 8},
    "large, half the batch, twice the length": {"batch": 0.5, "length": 2},
    "large, flash attention": {"attention": "FLASH_ATTENTION"},
    "large, cuDNN's attention": {"attention": "CUDNN_ATTENTION"},
    "large, memory-efficient attention": {"attention": "EFFICIENT_ATTENTION"},
}


def measured(network: str, loop: str, device: str, cache: str) -> dict[str, Any]:
    """One turn of a loop; of ours also the share of our code, and what the planner expects."""
    profile = cProfile.Profile() if loop == OURS else None
    setting = SETTINGS[network]
    facts, watched = run(loop, setting, device, cache, profile)
    if profile:
        facts["share_of_our_code"] = _seconds_of_ours(profile) / watched
    if profile and network == "large":
        facts |= _planned(setting.size(device == "cuda"), device, facts["peak_bytes"])
    return facts


def of_turns(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """What all turns of a loop have measured."""
    windows = [seconds for turn in turns for seconds in turn["windows"]]
    together = {
        "windows": windows,
        "seconds_of_step": median(windows),
        "peak_bytes": max(turn["peak_bytes"] for turn in turns),
        "seconds": round(sum(turn["seconds"] for turn in turns), 1),
    }
    if "share_of_our_code" in turns[0]:
        together["share_of_our_code"] = median(turn["share_of_our_code"] for turn in turns)
    return {**turns[0], **together}


def changed(name: str, device: str, cache: str) -> dict[str, Any]:
    """Speed and memory with one of `CHANGES`."""
    return run(OURS, SETTINGS["large"]._replace(**CHANGES[name]), device, cache)[0]


def profiled(device: str, cache: str) -> dict[str, Any]:
    """What of a step takes most: of the card's kernels, or of a CPU's operators."""
    profile = torch.profiler.profile()  # of this process, and of the card
    facts, _ = run(OURS, SETTINGS["large"], device, cache, profile)
    names = profile.key_averages()
    table = names.table(f"self_{device}_time_total", row_limit=30, max_name_column_width=80)
    return {**facts, "table": table}


def _seconds_of_ours(profile: cProfile.Profile) -> float:
    seconds = 0.0
    profile.create_stats()
    stats: dict[Any, Any] = profile.stats
    for (file, _, _), (_, _, own, _, callers) in stats.items():
        if file.startswith(OF_US):
            seconds += own
        elif file == "~":  # of C
            for (caller, _, _), (_, _, in_it, _) in callers.items():
                seconds += in_it if caller.startswith(OF_US) else 0.0
    return seconds


def _planned(size: Size, device: str, peak: float) -> dict[str, Any]:
    with torch.device("meta"):
        task, words = transformer(size), torch.empty(1, size.length, dtype=torch.long)
    network = Network(
        find_layers(task) or {},
        (words,),
        loss=task.loss,
        targets=words,
        precision=Precision.named("bf16-mixed"),
        fused=True,
    )
    request = Request(
        network, _hardware(device), 1, 1, size.batch, checkpointing=("none",), fsdp=True
    )
    plan = best(request, Sizes())
    if isinstance(plan, str):
        return {"plan": plan}
    return {
        "planned_bytes": plan.fullest.total,
        "planned_bytes_of": plan.fullest._asdict(),
        "planned_tokens_per_second": size.batch * size.length / plan.seconds,
        # A process on a CPU holds its libraries, too.
        "peak_over_plan": peak / plan.fullest.total if device == "cuda" else None,
    }


def _hardware(device: str) -> Hardware:
    """The card's kind where the planner knows it; an H100, and the memory that there is, else."""
    if device != "cuda":
        return cpu()
    card = torch.cuda.get_device_properties(0)
    kind = next((kind for kind in HARDWARE if kind in card.name.lower()), "h100")
    return HARDWARE[kind]._replace(memory=float(card.total_memory))
