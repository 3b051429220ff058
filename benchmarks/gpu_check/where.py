"""Where the time of a step goes, by torch.profiler.

A kernel belongs to a row by its own name, and by those of what has launched it: PyTorch marks what
FSDP2 does. (It marks an optimizer's step, too, but a Trainer trains inside of that.) On a CPU
operators stand for kernels.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

# The first that matches counts. What neither says belongs to the last row.
ROWS = {
    "communication": r"nccl|gloo|c10d|FSDP|all_gather|reduce_scatter|chunk_cat",
    "optimizer": r"fused_?adam|multi_tensor_apply|_foreach_",
    "attention": r"flash|fmha|attention|sdpa",
    "loss": r"log_softmax|nll_loss|cross_entropy",
    "matrix products": r"gemm|nvjet|cutlass|xmma|conv(?!ert)|(^|::)(add|b|badd)?mm\b|tem_fused",
}
COMPILED = {row: re.compile(pattern, re.IGNORECASE) for row, pattern in ROWS.items()}
REST, IDLE = "norms, activations and the rest", "idle"


def profiler(device: str) -> torch.profiler.profile:
    """Of this process, and of the card."""
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities)


def shares(events: Sequence[Any], seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """The share of the time that each row takes, and of that in which nothing ran; and of kernels.

    Rows may overlap, as a card computes and copies at once. On a card the last row has what no
    operator has launched, too. The kernels are those that take most, with their rows.
    """
    spent: Counter[str] = Counter(dict.fromkeys([*ROWS, REST], 0))
    kernels: Counter[str] = Counter()
    for name, microseconds in _pieces(events):
        spent[row_of(name)] += microseconds
        kernels[f"{row_of(name)}: {name[:160]}"] += microseconds
    on_card = [each.time_range for each in events if _is_kernel(each)]
    busy = float(sum(spent.values()))
    if on_card:
        spent[REST] += max(0, sum(each.end - each.start for each in on_card) - busy)
        busy = _union((each.start, each.end) for each in on_card)
    found = {row: value / 1e6 / seconds for row, value in spent.items()}
    most = {name: value / 1e6 / seconds for name, value in kernels.most_common(20)}
    return {**found, IDLE: max(0.0, 1 - busy / 1e6 / seconds)}, most


def row_of(name: str) -> str:
    """The row of a kernel by its name, followed by those of what has launched it."""
    return next((row for row, words in COMPILED.items() if words.search(name)), REST)


def _pieces(events: Sequence[Any]) -> Iterator[tuple[str, float]]:
    """Names and microseconds: of the kernels of each operator, or of itself where it has run."""
    on_card = any(_is_kernel(each) for each in events)
    for each in events:
        if each.device_type != DeviceType.CPU:
            continue
        above, names = each, []
        while above is not None:
            names.append(above.name)
            above = above.cpu_parent
        if on_card:
            for kernel in each.kernels:
                yield " < ".join([kernel.name, *names]), kernel.duration
        else:
            yield " < ".join(names), each.self_cpu_time_total


def _is_kernel(event: Any) -> bool:
    """Whether it ran on the card; the marks of what has launched it do not count."""
    return event.device_type == DeviceType.CUDA and not event.is_user_annotation


def _union(ranges: Iterable[tuple[float, float]]) -> float:
    total = end = 0.0
    for begin, stop in sorted(ranges):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total
