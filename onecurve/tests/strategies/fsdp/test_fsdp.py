"""strategy=fsdp, and axes like it: 16 bits, what cannot be sharded, what a step sends."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import largest_difference
from others import Stranger, Tempered
from several_fits import Case, Small, alone, fits, fits_in_ranks
from torch import Tensor, nn

import onecurve
from onecurve.compat.of_torch import TorchDispatchMode


class Normalized(Small):
    """Has BatchNorm, which computes in float32 beside layers of 16 bits."""

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


@pytest.mark.compares
def test_curves_of_16_bits_stay_near_single() -> None:
    """Half of the traffic, and no longer exact: a bfloat16 has 8 bits, which is 0.004.

    Under SGD and with a smooth activation: both keep a small error small, and AdamW does not.
    """
    half = {"precision": "bf16-mixed"}
    cases: dict[Any, Case] = {
        "sent": (Small, onecurve.DDP(communication_dtype="bf16"), {}),
        "computed": (Small, onecurve.FSDP(), half),
        "normalized": (Normalized, onecurve.FSDP(), half),
    }
    single, found = alone(cases), fits_in_ranks(cases)
    for name in ("sent", "computed"):
        curves = (logged[name]["train/loss"] for logged in (single, found))
        assert 1e-6 < largest_difference(*curves) < 0.01
    # Each rank has the statistics of its own samples.
    first, *_, last = found["normalized"]["train/loss"]
    assert last < first


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


def in_context(*shapes: tuple[int, ...]) -> Case:
    return partial(Calls, *shapes), onecurve.mesh(context=2), {}


REJECTED: dict[Any, Case] = {
    "wrap=['Conv2d']: the task has no Conv2d": (Small, onecurve.FSDP(wrap=["Conv2d"]), {}),
    "['encode']: no module of Small has": (Small, onecurve.FSDP(forward_methods=["encode"]), {}),
    "temperature has no dimension": (partial(Stranger, Tempered), onecurve.mesh(context=2), {}),
    "the sequence length 5; use context=1, or sequences of 6": in_context((2, 5, 6)),
    "the shape (6,), so there is no dimension 1": in_context((6,)),
    "another has full sequences of that length": in_context((2, 4, 6), (2, 2, 6)),
}


def test_what_cannot_be_sharded_is_rejected() -> None:
    """Units, methods, scalars and sequences; labels and conditions are passed in full."""
    labels_and_conditions = {"": in_context((2, 4, 6), (2,), (2, 4))}
    found = fits_in_ranks({**REJECTED, **labels_and_conditions})
    assert isinstance(found.pop(""), dict)
    for line, said in found.items():
        assert line in said


class Sent(TorchDispatchMode):
    """Counts messages. PyTorch's CommDebugMode gives each module an input of its own as well."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.kinds[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def sent_in_the_last_step(strategy: Any) -> Counter[str]:
    """By kind, beyond what a fit sends that is a step shorter."""
    counts = []
    for steps in (1, 2):
        with Sent() as sent:
            fits({"": (Small, strategy(), {"max_steps": steps})})
        counts.append(sent.kinds)
    return counts[1] - counts[0]


@pytest.mark.compares
def test_a_step_sends_no_more_than_it_must() -> None:
    fsdp = warm_ranks.run(sent_in_the_last_step, onecurve.FSDP)
    # Three layers with parameters: each is gathered for the forward and for the backward pass, but
    # the last one, which is kept for it.
    assert (fsdp["_allgather_base_"], fsdp["_reduce_scatter_base_"]) == (5, 3)
    # A pair of layers needs one sum forwards and one backwards, beside one small message; the
    # outputs of the last layer are joined. The gradient of the inputs is nobody's.
    tensor = warm_ranks.run(sent_in_the_last_step, onecurve.Tensor)
    assert (tensor["allreduce_"], tensor["_allgather_base_"]) == (3, 1)
