"""What is sent or computed in 16 bits, by which backend, and how often."""

from collections import Counter
from typing import Any

import pytest
import torch
import warm_ranks
from conftest import largest_difference
from lightning.pytorch import Callback
from several_fits import Case, Small, alone, fits, fits_in_ranks
from sharded_networks import made
from torch.distributed.device_mesh import init_device_mesh

import onecurve
from onecurve.compat.of_torch import TorchDispatchMode
from onecurve.strategies.tensor.parallel import apply_plan
from onecurve.strategies.tensor.plan import find_plan


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


@pytest.mark.parametrize("make", [onecurve.DDP, onecurve.mesh])
def test_the_process_group_has_the_backend_that_was_asked_for(make: Any) -> None:
    """By default it depends on the device. Nothing is started here, because that needs a GPU."""
    for device, backend in (("cpu", "gloo"), ("cuda", "nccl")):
        for asked, expected in (("auto", backend), ("gloo", "gloo")):
            strategy = make(backend=asked)
            strategy.parallel_devices = [torch.device(device, 0)]
            assert strategy._get_process_group_backend() == expected


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


def sent_in_a_step() -> dict[Any, dict[str, int]]:
    """By kind; under `tensor` of a step that has nothing else to send."""
    found: dict[Any, dict[str, int]] = {}
    for frees in (True, "auto"):
        counts = CountsMessages()
        strategy = onecurve.FSDP(reshard_after_forward=frees)
        fits({"": (Small, strategy, {"callbacks": [counts]})})
        found[frees] = {**counts.sent.kinds}
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    for name in ("mlp", "gpt", "vit"):
        task, inputs, targets = made(name)
        apply_plan(task, find_plan(task, {"": task}, None, 2), mesh)
        with Sent() as sent:
            task.loss(task(inputs), targets).backward()
        found[name] = {**sent.kinds}
    return found


@pytest.mark.compares
def test_a_step_sends_no_more_than_it_must() -> None:
    """A block has two pairs of sharded layers; each needs one sum forwards and one backwards."""
    sent = warm_ranks.run(sent_in_a_step)
    # Three layers with parameters: each is gathered for the forward and for the backward pass.
    # The last one is kept for it, unless all are to be freed.
    for frees, gathered in ((True, 6), ("auto", 5)):
        assert sent[frees]["_allgather_base_"] == gathered
        assert sent[frees]["_reduce_scatter_base_"] == 3
    # The last layer is joined. The gradient of the inputs is nobody's.
    assert sent["mlp"] == {"allreduce_": 2, "_allgather_base_": 1}
    # The embedding's sum forwards, the head's backwards; its logits are joined.
    assert sent["gpt"] == {"allreduce_": 2 * 4 + 2, "_allgather_base_": 1}
    # Rows of its attentions change hands, forwards and backwards.
    assert sent["vit"] == {"allreduce_": 2 * 4 + 1, "_allgather_base_": 1, "alltoall_base_": 4}
