"""What sharded layers send.

That they train like full ones is in rows of tests/parity/cases.py.
"""

from collections import Counter
from typing import Any

import pytest
import torch.distributed as dist
import warm_ranks
from sharded_networks import made
from torch.distributed.device_mesh import init_device_mesh

from onecurve.compat.of_torch import TorchDispatchMode
from onecurve.strategies.tensor.parallel import apply_plan
from onecurve.strategies.tensor.plan import find_plan


class Sent(TorchDispatchMode):
    """Counts messages. PyTorch's CommDebugMode gives each module an input of its own as well."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.kinds[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def counts() -> dict[str, dict[str, int]]:
    """What a step sends, by kind, of one that has nothing else to send."""
    found = {}
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    for name in ("mlp", "gpt", "vit"):
        task, inputs, targets = made(name)
        plan = find_plan(task, {"": task}, None, 2)
        apply_plan(task, plan, mesh)
        with Sent() as sent:
            task.loss(task(inputs), targets).backward()
        found[name] = dict(sent.kinds)
    return found


@pytest.mark.compares
def test_a_step_sends_no_more_than_it_must() -> None:
    """A block has two pairs of sharded layers; each needs one sum forwards and one backwards."""
    sent = warm_ranks.run(counts, (), processes=2)
    # The last layer is joined. The gradient of the inputs is nobody's.
    assert sent["mlp"] == {"allreduce_": 2, "_allgather_base_": 1}
    # The embedding's sum forwards, the head's backwards; its logits are joined.
    assert sent["gpt"] == {"allreduce_": 2 * 4 + 2, "_allgather_base_": 1}
    # Rows of its attentions are gathered, and their gradients scattered.
    assert sent["vit"] == {"allreduce_": 9, "_allgather_base_": 3, "_reduce_scatter_base_": 2}
