"""A loop of PyTorch alone, as one writes it by hand for one card: what others are measured by.

FSDP2 by layer, as in torchtitan: parameters are gathered in bfloat16, gradients averaged in
float32, and the last layers, whose backward pass follows at once, stay gathered.
"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

Loss = Callable[[Tensor, Tensor], Tensor]


def compile_and_shard(network: nn.Sequential, mesh: DeviceMesh, backend: str) -> None:
    """Compile each layer, and make it a unit of FSDP2."""
    low = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    *layers, norm, head = network
    for layer in network:
        layer.compile(backend=backend)
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=low)
    fully_shard([norm, head], mesh=mesh, mp_policy=low, reshard_after_forward=False)
    fully_shard(network, mesh=mesh, mp_policy=low)


def train(
    network: nn.Module,
    loss_of: Loss,
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    backend: str | None,
    after_step: Callable[[], None],
) -> float:
    """Train for all batches, and return the last loss; without a backend nothing is compiled."""
    if backend:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        assert isinstance(network, nn.Sequential)
        compile_and_shard(network, init_device_mesh(device.type, (1,)), backend)
        loss_of = torch.compile(loss_of, backend=backend)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
    loss = torch.zeros(())
    for inputs, targets in batches:
        inputs = inputs.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of(network(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step()
    return loss.item()
