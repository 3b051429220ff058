"""Cross entropy chunk by chunk: exact, without the logits of all rows.

Under every strategy it is a row of tests/parity/cases.py.
"""

import torch
from conftest import ROUNDING
from torch.nn import functional as F

from onecurve import chunked_cross_entropy

ROWS, CLASSES = 512, 2000


def test_losses_and_gradients_are_exact_without_all_logits() -> None:
    shapes = ((ROWS, 8), (CLASSES, 8), (CLASSES,))
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    hidden, weight, bias = inputs
    targets = torch.randint(CLASSES, (ROWS,))
    loss = F.cross_entropy(F.linear(hidden, weight, bias), targets)
    expected = loss, *torch.autograd.grad(loss, inputs)
    with torch.profiler.profile(profile_memory=True) as profiler:
        loss = chunked_cross_entropy(hidden, weight, targets, 7, bias).mean()
        found = loss, *torch.autograd.grad(loss, inputs)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= ROUNDING * other.abs().max()
    held, most = 0, 0
    events = [each for each in profiler.profiler.kineto_results.events() if each.nbytes()]  # type: ignore[union-attr]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    assert ROWS * 8 * 8 < most < ROWS * CLASSES * 8
