"""Cross entropy chunk by chunk: exact, without the logits of all rows.

Under every strategy it is a row of tests/parity/cases.py.
"""

from typing import Any

import torch
from conftest import ROUNDING
from torch import Tensor
from torch.nn import functional as F

from onecurve import chunked_cross_entropy

ROWS, CLASSES = 512, 2000


def of_all(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), targets)


def by_chunks(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor) -> Tensor:
    return chunked_cross_entropy(hidden, weight, targets, 7, bias).mean()


def test_losses_and_gradients_are_exact_without_all_logits() -> None:
    made: list[list[Tensor]] = []
    largest: list[int] = []
    for loss in (of_all, by_chunks):
        torch.manual_seed(0)
        shapes = ((ROWS, 8), (CLASSES, 8), (CLASSES,))
        inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        hidden, weight, bias = inputs
        targets = torch.randint(CLASSES, (ROWS,))
        with torch.profiler.profile(profile_memory=True) as profiler:
            value = loss(hidden, weight, targets, bias)
            value.backward()
        made.append([value.detach(), *(each.grad for each in inputs if each.grad is not None)])
        largest.append(peak(profiler))
    for one, other in zip(*made, strict=True):
        assert (one - other).abs().max() <= ROUNDING * one.abs().max()
    logits = ROWS * CLASSES * 8
    assert largest[0] > 2 * logits
    assert largest[1] < logits


def peak(profiler: Any) -> int:
    """The most bytes that were allocated at a time."""
    held = most = 0
    events = list(profiler.profiler.kineto_results.events())
    memory = [event for event in events if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
