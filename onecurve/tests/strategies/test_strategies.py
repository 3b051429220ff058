"""What is sent or computed in 16 bits, by which backend, and how often."""

from collections import Counter
from typing import Any

import pytest
import warm_ranks
from conftest import largest_difference
from lightning.pytorch import Callback
from several_fits import Case, Small, alone, fits, fits_in_ranks

import onecurve
from onecurve.compat.of_torch import TorchDispatchMode


@pytest.mark.compares
def test_curves_of_16_bits_stay_near_single() -> None:
    """Half of the traffic, and no longer exact: a bfloat16 has 8 bits, which is 0.004.

    Under SGD and with a smooth activation: both keep a small error small, and AdamW does not.
    """
    cases: dict[Any, Case] = {
        "sent": (Small, onecurve.DDP(communication_dtype="bf16"), {}),
        "computed": (Small, onecurve.FSDP(), {"precision": "bf16-mixed"}),
    }
    single, found = alone(cases), fits_in_ranks(cases)
    for name in cases:
        curves = (logged[name]["train/loss"] for logged in (single, found))
        assert 1e-6 < largest_difference(*curves) < 0.01


class Sent(TorchDispatchMode):
    """Counts messages. PyTorch's CommDebugMode gives each module an input of its own as well."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.kinds[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class CountsMessages(Callback):
    """Of the last step."""

    def on_train_batch_start(self, *_: Any) -> None:
        self.sent = Sent()
        self.sent.__enter__()

    def on_train_batch_end(self, *_: Any) -> None:
        self.sent.__exit__(None, None, None)


def sent_in_a_step() -> list[dict[str, int]]:
    """By kind, and by strategy."""
    found = []
    for strategy in (
        onecurve.FSDP(reshard_after_forward=True),
        onecurve.FSDP(),
        onecurve.Tensor(),
    ):
        counts = CountsMessages()
        fits({"": (Small, strategy, {"callbacks": [counts]})})
        found.append({**counts.sent.kinds})
    return found


@pytest.mark.compares
def test_a_step_sends_no_more_than_it_must() -> None:
    frees, keeps, tensor = warm_ranks.run(sent_in_a_step)
    # Three layers with parameters: each is gathered for the forward and for the backward pass.
    # The last one is kept for it, unless all are to be freed.
    for sent, gathered in ((frees, 6), (keeps, 5)):
        assert (sent["_allgather_base_"], sent["_reduce_scatter_base_"]) == (gathered, 3)
    # A pair of layers needs one sum forwards and one backwards, beside one small message; the
    # outputs of the last layer are joined. The gradient of the inputs is nobody's.
    assert tensor == {"allreduce_": 3, "_allgather_base_": 1}
