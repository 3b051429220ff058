"""Sharded layers compute the same as full ones, step by step, also with FSDP2 on top."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import warm_ranks
from conftest import ROUNDING
from sharded_networks import Task, made
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from onecurve.compat.of_torch import TorchDispatchMode
from onecurve.strategies.tensor.parallelize import apply_plan
from onecurve.strategies.tensor.plan import check_plan, find_plan
from onecurve.strategies.tensor.report import shares
from onecurve.strategies.tensor.sharded_logits import sharded_logits

STEPS = 5
Result = dict[str, Any]


def group(shard: int) -> DeviceMesh:
    """Of all ranks; warm ones keep their process group."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    shape = (shard, dist.get_world_size() // shard)
    return init_device_mesh("cpu", shape, mesh_dim_names=("shard", "tensor"))


def losses(task: Task, inputs: Tensor, targets: Tensor, **kind: bool) -> Tensor:
    optimizer = torch.optim.AdamW(task.parameters(), lr=1e-3, **kind)
    found = []
    for _ in range(STEPS):
        with sharded_logits():
            loss = task.loss(task(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


def cut(task: Task, mesh: DeviceMesh, sequence: bool) -> None:
    """As a strategy does it."""
    size = mesh["tensor"].size()
    found = find_plan(task, {"": task}, None, size)
    check_plan(task, found, size, sequence=sequence)
    apply_plan(task, found, mesh["tensor"], sequence)


def parity(
    name: str, options: dict[str, Any], mesh: DeviceMesh, sequence: bool, fused: bool
) -> Result:
    shard = mesh["shard"].size()
    reference, inputs, targets = made(name, **options)
    expected = losses(reference, inputs, targets)
    task, _, _ = made(name, **options)
    before = {path: weight.detach().clone() for path, weight in task.named_parameters()}
    plan = find_plan(task, {"": task}, None, mesh["tensor"].size())
    _, held, numbers = shares(task, plan, mesh["tensor"].size())
    cut(task, mesh, sequence)
    local = [
        weight.to_local() if isinstance(weight, DTensor) else weight for weight in task.parameters()
    ]
    assert sum(weight.numel() for weight in local) == held
    # A unit must hold all uses of a weight.
    for part in [] if options.get("tied") else task.network.children():
        fully_shard(part, mesh=mesh["shard"])
    fully_shard(task, mesh=mesh["shard"])
    weights: dict[str, Any] = dict(task.named_parameters())
    for path, weight in weights.items():
        assert torch.equal(weight.full_tensor(), before[path]), path
    rows = len(inputs) // shard
    own = slice(mesh.get_local_rank("shard") * rows, None)
    own = slice(own.start, own.start + rows)
    kind = {"fused": True} if fused else {"foreach": True}
    found = losses(task, inputs[own], targets[own], **kind)
    dist.all_reduce(found)
    apart = [
        (weight.full_tensor() - whole).abs().max().item()
        for weight, whole in zip(weights.values(), reference.parameters(), strict=True)
    ]
    return {
        "losses": (found / dist.get_world_size() - expected).abs().max().item(),
        "weights": max(apart),
        "learnt": (expected[0] - expected[-1]).item(),
        "share": numbers / sum(weight.numel() for weight in before.values()),
    }


CASES = [
    ("mlp", {}, False), ("gpt", {}, False), ("gpt", {}, True), ("gpt", {"tied": True}, True),
    ("vit", {}, False), ("vit", {}, True), ("encoder", {}, True), ("named", {}, False),
    ("mlp", {"inplace": True}, False), ("fused", {}, False), ("fused", {}, True),
]  # fmt: skip


def all_cases(shard: int) -> list[Result]:
    mesh = group(shard)
    return [
        parity(name, options, mesh, sequence, fused=number % 2 == 0)
        for number, (name, options, sequence) in enumerate(CASES)
    ]


@pytest.mark.compares
@pytest.mark.parametrize("shard", [1, pytest.param(2, marks=pytest.mark.long)])
def test_sharded_layers_train_like_full_ones(shard: int, tmp_path: Path) -> None:
    """With AdamW, fused and foreach in turn, over 2 ranks, and over 2 of 4 ranks."""
    results = on_ranks(2 * shard, tmp_path, all_cases, shard)
    for case, result in zip(CASES, results, strict=True):
        assert result["losses"] <= ROUNDING, (case, result)
        assert result["weights"] <= ROUNDING, (case, result)
        assert result["learnt"] > 0, (case, result)
    found = {case[0]: result["share"] for case, result in zip(CASES, results, strict=True)}
    assert found["mlp"] > 0.97
    assert found["vit"] > 0.82
    assert found["named"] > 0.9
    assert found["fused"] > 0.95


def on_ranks(processes: int, logs: Path, work: Any, *arguments: Any) -> Any:
    return warm_ranks.run(work, arguments, processes=processes, logs=logs)


class Sent(TorchDispatchMode):
    """Counts messages. PyTorch's CommDebugMode gives each module an input of its own as well."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.kinds[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def counts(sequence: bool) -> dict[str, dict[str, int]]:
    """What a step sends, by kind, of one that has nothing else to send."""
    found = {}
    mesh = group(1)
    for name in ("mlp", "gpt", "vit"):
        task, inputs, targets = made(name)
        cut(task, mesh, sequence and name != "mlp")
        with Sent() as sent, sharded_logits():
            task.loss(task(inputs), targets).backward()
        found[name] = dict(sent.kinds)
    return found


@pytest.mark.compares
def test_a_step_sends_no_more_than_it_must(tmp_path: Path) -> None:
    """A block has two pairs of sharded layers; each needs one sum forwards and one backwards."""
    sent = on_ranks(2, tmp_path, counts, False)
    # The last layer is joined. The gradient of the inputs is nobody's.
    assert sent["mlp"] == {"allreduce_": 2, "_allgather_base_": 1}
    # The embedding's sum forwards, the head's backwards, and two sums in its loss.
    assert sent["gpt"] == {"allreduce_": 2 * 4 + 2 + 2}
    # Rows of its attentions change hands, forwards and backwards.
    assert sent["vit"] == {
        "allreduce_": 2 * 4 + 1,
        "_allgather_base_": 1,
        "alltoall_base_": 4,
    }
    sent = on_ranks(2, tmp_path, counts, True)["gpt"]
    # With sharded sequences one of either in place of each sum; the sequence is cut in no message,
    # and joined at the end; the gradient of what was cut is joined, that of what was joined cut.
    assert sent["_reduce_scatter_base_"] == 8
    assert sent["_allgather_base_"] == 8 + 2
    # Those outside of the blocks, and of each uncut module within them its gradients, at once.
    assert sent["allreduce_"] == 4 + 2 * 3 + 1
