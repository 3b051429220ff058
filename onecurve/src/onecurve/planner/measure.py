"""`plan.measure=true`: how long layers really take, on this machine."""

import time
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from ..machine import count_cores
from ..strategies.pipeline.shapes import with_tensors_on
from ..strategies.pipeline.stage import call_layer
from .hardware import Hardware
from .layer_passes import Conditions, Tensors
from .network import Network
from .rates import seconds

MOST_SAMPLES = 64
TIMES = 10


def measure(network: Network, hardware: Hardware, ranks: int, batch: int) -> None:
    """Run each kind of layer forward and backward, and keep how far the estimate was off.

    Args:
        network: Whose layers.
        hardware: This machine.
        ranks: How many will share it, its threads and the batch.
        batch: Samples of a step.

    Raises:
        UserError: If a layer cannot run.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, count_cores() // ranks))
    try:
        _measure_layers(network, hardware, max(1, min(MOST_SAMPLES, batch // ranks)))
    finally:
        torch.set_num_threads(before)


def _measure_layers(network: Network, hardware: Hardware, samples: int) -> None:
    chain = network.chain(Conditions())
    inputs: Tensors = network.inputs
    for index, (layer, kind) in enumerate(zip(network.layers.values(), network.kinds, strict=True)):
        passes = chain[index]
        if kind not in network.factors:
            forward, backward = _timed(layer, inputs, samples, network)
            network.factors[kind] = (
                forward / max(1e-9, seconds(passes.forward, samples, hardware)),
                backward / max(1e-9, seconds(passes.backward, samples, hardware)),
            )
        inputs = passes.outputs


def _timed(
    layer: nn.Module, inputs: Tensors, samples: int, network: Network
) -> tuple[float, float]:
    """Seconds of a forward and a backward pass of some samples: the median of some."""
    copy = with_tensors_on(torch.device("cpu"), {"layer": layer})["layer"].train()
    with torch.no_grad():
        for tensor in (*copy.parameters(), *copy.buffers()):
            tensor.fill_(0.01) if tensor.is_floating_point() else tensor.zero_()
    given = [_made(value, samples) for value in inputs]
    forward, backward = [], []
    for _ in range(TIMES):
        copy.zero_grad()
        started = time.perf_counter()
        with network.precision.context():
            result: Any = call_layer(copy, tuple(given))
        forward.append(time.perf_counter() - started)
        outputs = result if isinstance(result, tuple) else (result,)
        trained = [value for value in outputs if value.requires_grad]
        started = time.perf_counter()
        if trained:
            torch.autograd.backward(trained, [torch.ones_like(value) for value in trained])
        backward.append(time.perf_counter() - started)
    return median(forward[1:]), median(backward[1:])


def _made(value: Tensor, samples: int) -> Tensor:
    shape = (samples, *value.shape[1:])
    if not value.is_floating_point():
        return torch.zeros(shape, dtype=value.dtype)
    return torch.randn(shape, dtype=value.dtype).requires_grad_(value.requires_grad)
