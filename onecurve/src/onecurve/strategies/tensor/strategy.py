"""`strategy=tensor`: every rank does its part of each layer, for all samples.

Layers are cut as a plan says (`plan.py`), by column and by row, so that a pair of them needs one
sum over the ranks. FSDP2 lies on top, for a group of one, so that all parameters are of one kind.

Exact: the loss curve of `single`, to float tolerance, with accumulation, clipping, frozen layers
and an uneven last batch. Not exact: dropout within cut layers (the ranks draw the same masks for
other features), which is announced.
Rejects: what does not divide. Whether a network is the same by a plan, `onecurve.parity` shows.
Memory per rank: of what is cut parameters, gradients and optimizer state divided by the ranks, and
activations of cut layers; with ``sequence`` also those between them.
Source: M. Shoeybi et al., "Megatron-LM", 2019; V. Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022 (sequence).
"""

from collections.abc import Mapping

from lightning.pytorch.strategies import DDPStrategy

from ..fsdp.parallel import ShardedParameters
from ..fsdp.sharding import Sharding
from ..layers_made import Recomputed
from ..strategy import Backend, OneCurve
from .parallel import TensorParallel


class Tensor(OneCurve, DDPStrategy):
    """Tensor parallelism for an ordinary LightningModule.

    Args:
        plan: Globs of module names and their styles, or "auto": what `tensor_plan()` of the network
            or of its modules says, else what is found.
        sequence: Cut what lies between cut layers along the sequence, dimension 1.
        replicas: Groups of ranks that hold all layers each; the batch is shared by them.
        activation_checkpointing: What a backward pass computes again: see `layers_made`.
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
        backend: What carries what they send: see `OneCurve`.
    """

    name = "tensor"

    def __init__(
        self,
        plan: Mapping[str, str] | str = "auto",
        sequence: bool = False,
        replicas: int = 1,
        activation_checkpointing: Recomputed = "none",
        timeout_seconds: float = 300,
        backend: Backend = "auto",
    ) -> None:
        super().__init__(
            {"replicate": replicas, "tensor": "auto"},
            [
                TensorParallel(plan, sequence),
                # A single shard is full: there is nothing to free.
                ShardedParameters(Sharding(reshard_after_forward=False)),
            ],
            activation_checkpointing,
            backend,
            timeout_seconds,
        )
