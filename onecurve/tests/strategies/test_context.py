"""Context parallelism: which inputs it shards or rejects.

That networks on shards train like those on full sequences is in rows of tests/parity/cases.py.
"""

from functools import partial
from typing import Any

import torch
from several_fits import Case, Small, fits_in_ranks
from torch import Tensor

import onecurve


class Calls(Small):
    """Calls its network with inputs of these shapes."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.shapes = shapes

    def forward(self, *inputs: Tensor) -> Any:
        return self.net(inputs[0])

    def of(self, batch: Any) -> Tensor:
        outputs: Tensor = self(*(torch.zeros(shape) for shape in self.shapes))
        return outputs.sum()


REJECTED = {
    "the sequence length 5; use context=1, or sequences of 6": [(2, 5, 6)],
    "the shape (6,), so there is no dimension 1": [(6,)],
    "another has full sequences of that length": [(2, 4, 6), (2, 2, 6)],
}
LABELS_AND_CONDITIONS = [(2, 4, 6), (2,), (2, 4)]


def test_inputs_that_cannot_be_sharded_are_rejected_and_labels_are_passed_in_full() -> None:
    shapes = {**REJECTED, "": LABELS_AND_CONDITIONS}
    cases: dict[Any, Case] = {
        line: (partial(Calls, *each), onecurve.mesh(context=2), {}) for line, each in shapes.items()
    }
    found = fits_in_ranks(cases)
    assert isinstance(found.pop(""), dict)
    for line, said in found.items():
        assert line in said
