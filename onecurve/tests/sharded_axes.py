"""Sharded sequences combined with another axis, in four ranks."""

from typing import Any

import torch
import torch.distributed as dist
from sharded_sequences import LENGTH, WIDTH, Attention, Checkpointed, Embedding
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from onecurve.strategies.context.attention import working_on
from onecurve.strategies.context.axis import Axis
from onecurve.strategies.context.sequence import gather_outputs, run_on_shards, shard_sequences

SAMPLES = 4
PLAN: Any = {
    "query": ColwiseParallel(),
    "key_value": ColwiseParallel(),
    "output": RowwiseParallel(),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [Checkpointed(Attention(is_causal=True), reentrant=False) for _ in range(2)]
    return nn.Sequential(Embedding(), *layers, nn.Linear(WIDTH, WIDTH))


def batch() -> Tensor:
    return torch.randint(10, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))


def loss(outputs: Tensor) -> Tensor:
    return outputs.square().mean()


def differences() -> dict[str, float]:
    """For each pair of axes how far the gradients are from those of the whole, relative."""
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    found = {}
    for axes in (("shard", "context"), ("context", "tensor"), ("pipeline", "context")):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=axes)
        expected = network()
        loss(expected(batch())).backward()
        (other,) = {*axes} - {"context"}
        gradients = AXES[other](network(), mesh)
        furthest = torch.stack(
            [
                (gradients[path] - parameter.grad).abs().max() / parameter.grad.abs().max()
                for path, parameter in expected.named_parameters()
                if path in gradients and parameter.grad is not None
            ]
        ).max()
        dist.all_reduce(furthest, op=dist.ReduceOp.MAX)
        found[" x ".join(axes)] = float(furthest)
    dist.destroy_process_group()
    return found


def sharded(net: Any, mesh: DeviceMesh) -> dict[str, Tensor]:
    """Half of the samples, and of each a half of its positions."""
    over = mesh["shard", "context"]._flatten("both")
    for layer in net.children():
        fully_shard(layer, mesh=over)
    fully_shard(net, mesh=over)
    mine = batch().chunk(2)[mesh.get_local_rank("shard")]
    loss(run_on_shards(net, (mine,), mesh.get_group("context"))).backward()
    return {path: parameter.grad.full_tensor() for path, parameter in net.named_parameters()}


def tensor_parallel(net: Any, mesh: DeviceMesh) -> dict[str, Tensor]:
    """Half of the heads, of half of the positions."""
    for layer in net[1:3]:
        parallelize_module(layer.layer, mesh["tensor"], PLAN)
    loss(run_on_shards(net, (batch(),), mesh.get_group("context"))).backward()
    gradients = {}
    for path, parameter in net.named_parameters():
        gradient = parameter.grad
        gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        gradients[path] = _averaged(gradient, mesh)
    return gradients


def pipelined(net: Any, mesh: DeviceMesh) -> dict[str, Tensor]:
    """Half of the layers on a half of the positions, micro-batch by micro-batch."""
    first = mesh.get_local_rank("pipeline") == 0
    axis = Axis(mesh.get_group("context"))

    def loss_of_whole(outputs: Tensor, _: Tensor) -> Tensor:
        with working_on(None):
            return loss(gather_outputs(outputs, axis.piece(LENGTH)))

    layers = nn.Sequential(*(net[:2] if first else net[2:]))
    number, device = mesh.get_local_rank("pipeline"), torch.device("cpu")
    stage = PipelineStage(layers, number, 2, device, group=mesh.get_group("pipeline"))
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=loss_of_whole)
    (piece,) = shard_sequences((batch(),), axis)
    given = {"target": torch.zeros(SAMPLES)} if not first else {}
    with working_on(axis.piece(LENGTH)):
        schedule.step(*((piece,) if first else ()), **given)
    return {
        path: _averaged(parameter.grad, mesh)
        for path, parameter in net.named_parameters()
        if parameter.grad is not None
    }


def _averaged(gradient: Tensor, mesh: DeviceMesh) -> Tensor:
    dist.all_reduce(gradient, group=mesh.get_group("context"))
    return gradient / 2


AXES = {"shard": sharded, "tensor": tensor_parallel, "pipeline": pipelined}
