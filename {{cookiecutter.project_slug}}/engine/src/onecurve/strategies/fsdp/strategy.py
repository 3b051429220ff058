"""`strategy=fsdp`: every rank holds a shard of parameters, gradients and optimizer state.

PyTorch's FSDP2 does the work. A unit (`wrap.py`) gathers its parameters for its forward pass and
again for its backward pass, and then averages gradients into shards.

Exact: the loss curve of `single`, to float tolerance, at every world size, with accumulation,
clipping, frozen layers, tied weights, replicas and an uneven last batch. Not exact: BatchNorm
(statistics of each rank's share; evaluation uses those of rank 0), dropout (each rank draws its own
masks), bf16-mixed and 16-mixed (all parameters but those of BatchNorm are rounded to 16 bits, also
where autocast alone would compute in 32).
Refuses: parameters without a dimension, and sparse gradients, which cannot be cut; LBFGS and
Adafactor, which want whole parameters.
Memory per rank: parameters, gradients and optimizer state divided by the ranks that share them, and
two or so whole units at a time. Gradients are averaged after each accumulated batch too: it sends
more, but no rank ever holds a whole gradient.
Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Annotated, Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.device_dtype_mixin import _update_properties
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from ...checkpoint.stored import model_state_here, optimizer_states_here
from ...errors import UserError
from ...limits import Number
from ..layers import find_layers
from ..process_group import PartPerRank, Seconds
from .state import cut_like, cut_optimizer_state, gather
from .units import find_units
from .whole import refuse_of_shards, refuse_sparse, refuse_whole


class FSDP(PartPerRank):
    """Fully sharded data parallelism for an ordinary LightningModule.

    Lightning's own ModelParallelStrategy wants a module that shards itself in `configure_model`,
    and takes few precisions.

    Args:
        wrap: What becomes a unit: "layer", "min_params" or a list of class names (`find_units`).
        min_params: Parameters of a unit at least, for ``wrap="min_params"``.
        reshard_after_forward: Free a unit's gathered parameters between forward and backward pass.
        cpu_offload: Keep shards, gradients and optimizer state in the CPU's memory, and update them
            there. On a CPU this changes nothing.
        activation_checkpointing: Compute a unit's activations again in the backward pass instead of
            keeping them.
        replicas: Groups of ranks that hold all shards each; the batch is shared by all ranks.
            Neighbouring ranks form a group.
        check_loss: Say so, if the first loss is no mean over samples: see `mean_loss`.
        timeout_seconds: How long a rank waits for the others in a collective before it fails.
    """

    def __init__(
        self,
        wrap: str | Sequence[str] = "layer",
        min_params: Annotated[int, Number(least=1)] = 1_000_000,
        reshard_after_forward: bool = True,
        cpu_offload: bool = False,
        activation_checkpointing: bool = False,
        replicas: Annotated[int, Number(least=1)] = 1,
        check_loss: bool = True,
        timeout_seconds: Seconds = 1800,
    ) -> None:
        super().__init__(timeout_seconds)
        self.check_loss = check_loss
        self.wrap = wrap
        self.min_params = min_params
        self.reshard_after_forward = reshard_after_forward
        self.cpu_offload = cpu_offload
        self.activation_checkpointing = activation_checkpointing
        self.replicas = replicas
        self.mesh: DeviceMesh | None = None

    def _get_process_group_backend(self) -> str:
        if self.cpu_offload and self.root_device.type == "cuda":
            # Shards that lie on the CPU are also clipped and gathered there.
            return "cpu:gloo,cuda:nccl"
        return super()._get_process_group_backend()

    def setup_environment(self) -> None:
        """Join the process group, then lay the ranks out as replicas of shards."""
        super().setup_environment()
        if self.mesh is None:
            shape = (self.replicas, self.world_size // self.replicas)
            axes = ("replicate", "shard")
            mesh = init_device_mesh(self.root_device.type, shape, mesh_dim_names=axes)
            self.mesh = mesh if self.replicas > 1 else mesh["shard"]

    # This rank's shard of the network

    def model_to_device(self) -> None:
        """Shard the module, unless an earlier fit or test did, and put it on the device."""
        module = self._connected_module
        if not any(isinstance(parameter, DTensor) for parameter in module.parameters()):
            # Start all ranks from the same weights, as DistributedDataParallel does.
            self._copy_first_rank(*module.parameters(), *module.buffers())
            self._shard()

        def moved(tensor: Tensor) -> Tensor:
            stays = self.cpu_offload and isinstance(tensor, DTensor)
            return tensor if stays else tensor.to(self.root_device)

        module._apply(moved)  # type: ignore[no-untyped-call]
        _update_properties(module, device=self.root_device)

    @torch.no_grad()
    def _copy_first_rank(self, *tensors: Tensor) -> None:
        # One at a time: the whole network may not fit on one device.
        for tensor in tensors:
            on_device = tensor.to(self.root_device).contiguous()
            dist.broadcast(on_device, src=0)
            tensor.copy_(on_device)

    def _shard(self) -> None:
        module = self._connected_module
        if self._layer_sync is not None and module.trainer.training:
            self._layer_sync.apply(module)
            # Or Lightning's teardown would try to turn back what is sharded by then.
            self._layer_sync = None
        refuse_sparse(module)
        for name, parameter in module.named_parameters():
            if parameter.ndim == 0:
                raise UserError(
                    f"strategy=fsdp: parameter {name} has no dimension to cut; give it one, such "
                    "as torch.ones(1), or use strategy=ddp"
                )
        low = self._mixed_precision()
        if low.param_dtype is not None:
            # Beside its float32 statistics it wants float32 parameters: a unit of its own.
            for part in module.modules():
                if isinstance(part, _BatchNorm) and part.affine:
                    self._fully_shard(part, MixedPrecisionPolicy(), self.reshard_after_forward)
        for unit in find_units(module, self.wrap, self.min_params):
            if self.activation_checkpointing:
                _recompute_in_backward(unit)
            if not isinstance(unit, FSDPModule):
                self._fully_shard(unit, low, self.reshard_after_forward)
        outside = any(not isinstance(parameter, DTensor) for parameter in module.parameters())
        # The whole ties its units together, so that one gathers while another computes; but then it
        # must be called. A task that names no layers may call its parts one by one, as a GAN does.
        if outside or find_layers(module) is not None:
            # None: as the units do, but it keeps what its backward pass wants at once.
            self._fully_shard(module, low, None if self.reshard_after_forward else False)

    def _fully_shard(
        self, module: nn.Module, policy: MixedPrecisionPolicy, reshard_after_forward: bool | None
    ) -> None:
        offload = self.cpu_offload and self.root_device.type == "cuda"
        fully_shard(
            module,
            mesh=self.mesh,
            reshard_after_forward=reshard_after_forward,
            mp_policy=policy,
            offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy(),
        )

    def _mixed_precision(self) -> MixedPrecisionPolicy:
        """Parameters are gathered in the type that Lightning's autocast would give them anyway."""
        dtypes = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
        dtype = dtypes.get(self.precision_plugin.precision)
        if dtype is None:
            return MixedPrecisionPolicy()
        return MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)

    def task_step(self, name: str, *args: Any) -> Any:
        """Run a step of the task, and refuse a loss of shards."""
        output = super().task_step(name, *args)
        refuse_of_shards(self._connected_module, output)
        return output

    def teardown(self) -> None:
        """Release the device."""
        # What failed may hold parameters, which cannot be moved then; its error is the one to read.
        with nullcontext() if sys.exc_info()[0] is None else suppress(RuntimeError):
            super().teardown()

    # Evaluation

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Have the optimizers made, and refuse those that want whole parameters."""
        super().setup_optimizers(trainer)
        refuse_whole(self.optimizers)

    def on_validation_start(self) -> None:
        """Evaluate rank 0's buffers, which are what a checkpoint holds."""
        super().on_validation_start()
        self._copy_first_rank(*self._connected_module.buffers())

    # Checkpoints

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """On rank 0 the whole network's state under the original names; elsewhere nothing.

        For a sharded checkpoint this rank's shards.
        """
        state: dict[str, Any] = self._connected_module.state_dict()
        return state if self.keeps_shards else gather(state, self.is_global_zero)

    def each_whole(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Gathered."""
        for name, tensor in tensors.items():
            yield from gather({name: tensor}, self.is_global_zero).items()

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take this rank's shard of a whole network's state."""
        own = self._connected_module.state_dict()
        shards = {
            name: cut_like(value, own.get(name))
            for name, value in model_state_here(checkpoint["state_dict"], own).items()
        }
        super().load_model_state_dict({"state_dict": shards}, strict)

    def collect_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """As `lightning_module_state_dict`; parameters have their usual ids."""
        state: dict[str, Any] = optimizer.state_dict()
        return state if self.keeps_shards else gather(state, self.is_global_zero)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take the state of this rank's shards."""
        states = optimizer_states_here(checkpoint["optimizer_states"], self.optimizers)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(cut_optimizer_state(state, optimizer))


def _recompute_in_backward(unit: nn.Module) -> None:
    # Beneath the hooks that gather parameters, and without a wrapper that would change their names.
    unit.forward = partial(checkpoint, unit.forward, use_reentrant=False)
