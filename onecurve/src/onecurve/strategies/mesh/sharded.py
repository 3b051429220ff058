"""What strategies share whose parameters are cut: by FSDP2, and within layers before it.

Exact: whole tensors come out of the parts, and parts out of whole tensors, on any mesh.
Refuses: parameters without a dimension, and sparse gradients, which cannot be cut; LBFGS and
Adafactor, which want whole parameters.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, Literal

import torch
import torch.distributed as dist
from lightning.fabric.utilities.device_dtype_mixin import _update_properties
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ...checkpoint.stored import model_state_here, optimizer_states_here
from ...errors import say
from ..fsdp.explained import explained
from ..fsdp.sharding import (
    Sharding,
    before_backward,
    freed_after_inference,
    is_sharded,
    reshard,
    set_plain_factories,
    steps_as_forward,
    within_step,
)
from ..fsdp.state import cut_like, cut_optimizer_state, gather
from ..fsdp.units import check_wrap
from ..fsdp.whole import (
    refuse_of_shards,
    refuse_scalars,
    refuse_sparse,
    refuse_whole,
)
from ..layers import find_layers
from ..process_group import Seconds
from ..redirect import forward_replaced
from .cutting import Cutting
from .on_mesh import OnMesh


class Sharded(OnMesh):
    """Every rank with its shard of every parameter.

    Args:
        name: What ``strategy=...`` calls it.
        sizes: Of the mesh, see `OnMesh`.
        sharding: How FSDP2 is put on the network.
        timeout_seconds: How long a rank waits for the others in a collective before it fails.

    Attributes:
        plan: What is cut within layers, and how: see `tensor.plan`.
        sequence: Whether what lies between cut layers works on pieces of the sequence.
    """

    plan: Mapping[str, str] | str = "auto"
    sequence: bool = False
    _is_sequence_cut: bool = False

    def __init__(
        self,
        name: str,
        sizes: Mapping[str, int | Literal["auto"]],
        sharding: Sharding,
        timeout_seconds: Seconds = 300,
    ) -> None:
        super().__init__(sizes, timeout_seconds)
        self.name = name
        self._while_connected = ExitStack()
        self.sharding = sharding

    def _get_process_group_backend(self) -> str:
        backend = super()._get_process_group_backend()
        # Shards that lie on the CPU are also clipped and gathered there.
        return "cpu:gloo,cuda:nccl" if self.sharding.cpu_offload and backend == "nccl" else backend

    @property
    def cuts_parameters(self) -> bool:
        """Whether ranks share the parameters that they hold."""
        return True

    # This rank's part of the network

    def model_to_device(self) -> None:
        """Take this rank's part, unless an earlier fit or test did, and put it on the device."""
        module = self._connected_module
        if not is_sharded(module):
            check_wrap(module, self.sharding.wrap)
            # Start all ranks from the same weights, as DistributedDataParallel does.
            self._copy_first_rank(*module.parameters(), *module.buffers())
            self._sync_batchnorm()
            if self.sizes.tensor > 1:
                self._cut_network()
            self.make_layers()
            self._shard(module)
            # Also where a callback calls it.
            module.register_forward_hook(freed_after_inference)
        self._move(module, self.root_device)
        set_plain_factories(module)
        self._while_connected.enter_context(steps_as_forward(module))
        self._work_on_pieces()

    def _cut_network(self) -> None:
        """Cut the layers of the whole network."""
        module = self._connected_module
        layers = find_layers(module) or {"": module}
        self._move(module, self.root_device)
        cutting = Cutting(self.sizes, self.plan, self.sequence, self.mesh["tensor"])
        (plan,) = cutting.check(module, [layers], self.is_global_zero)
        cutting.cut(module, plan)

    def _work_on_pieces(self) -> None:
        """Let `forward` take whole sequences, of which the network is given this rank's piece."""
        module, group = self._connected_module, self.context_group
        if group is None:
            return
        from ..context.sequence import on_pieces

        of_piece = module.forward

        def forward(*inputs: Any, **options: Any) -> Any:
            self._is_sequence_cut = True
            return on_pieces(of_piece, inputs, group, **options)

        self._while_connected.enter_context(forward_replaced(module, forward))

    def _sync_batchnorm(self) -> None:
        module = self._connected_module
        if self._layer_sync is not None and module.trainer.training:
            self._layer_sync.apply(module)
            # Or Lightning's teardown would try to turn back what is sharded by then.
            self._layer_sync = None

    @torch.no_grad()
    def _copy_first_rank(self, *tensors: Tensor, group: Any = None) -> None:
        # One at a time: the whole network may not fit on one device.
        for tensor in tensors:
            on_device = tensor.to(self.root_device).contiguous()
            dist.broadcast(on_device, group=group or self.stage_group, group_src=0)
            tensor.copy_(on_device)

    def _shard(self, part: nn.Module) -> None:
        """Cut the parameters of the network, or of a stage of it."""
        refuse_sparse(part, self.name)
        refuse_scalars(part, self.name)
        both = self.sizes.replicate > 1
        mesh = self.mesh["replicate", "shard"] if both else self.mesh["shard"]
        self.sharding.apply(part, mesh, self.precision_plugin)

    def _move(self, module: nn.Module, device: torch.device) -> None:
        """Put what has memory on a device."""

        def moved(tensor: Tensor) -> Tensor:
            stays = self.sharding.cpu_offload and isinstance(tensor, DTensor)
            return tensor if stays or tensor.is_meta else tensor.to(device)

        module._apply(moved)  # type: ignore[no-untyped-call]
        _update_properties(module, device=device)

    def task_step(self, name: str, *args: Any) -> Any:
        """Run a step of the task, and refuse a loss of shards."""
        with within_step(), self._cut_logits():
            output = super().task_step(name, *args)
        self._say_if_whole(name)
        if name != "training_step" or output is None:
            reshard(self._connected_module)
        refuse_of_shards(self._connected_module, output, self.name)
        return output

    def _say_if_whole(self, step: str) -> None:
        """Say it once if a context axis has nothing to cut in what a step calls."""
        cuts = self.context_group is not None and self.sizes.pipeline == 1
        if cuts and not self._is_sequence_cut and self.is_global_zero:
            say(
                f"strategy.context={self.sizes.context}: {step} does not call self(inputs), so no "
                "sequence is cut, and every rank computes all of it"
            )
        self._is_sequence_cut = True

    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Have FSDP2 know of a loss that no step has returned."""
        module = self._connected_module
        if not module.automatic_optimization and isinstance(module, FSDPModule):
            closure_loss = before_backward(module, closure_loss)
        return super().backward(closure_loss, optimizer, *args, **kwargs)

    @property
    def can_compile_loss(self) -> bool:
        """Not where logits may be cut; those put together from pieces of a sequence are whole."""
        return self.sizes.tensor == 1 or self.sizes.context > 1

    def _cut_logits(self) -> AbstractContextManager[None]:
        if self.can_compile_loss:
            return nullcontext()
        from ..tensor.vocabulary import cut_logits

        return cut_logits()

    def on_exception(self, exception: BaseException) -> None:
        """Say in one line what PyTorch says of shards, where it means a task."""
        super().on_exception(exception)
        if self.lightning_module is not None:
            line = explained(exception, self.lightning_module, self.name)
            exception.__cause__ = line or exception.__cause__

    def teardown(self) -> None:
        """Release the device."""
        self._while_connected.close()
        # What failed may hold parameters, which cannot be moved then; its error is the one to read.
        with nullcontext() if sys.exc_info()[0] is None else suppress(RuntimeError, AttributeError):
            super().teardown()

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Have the optimizers made, and refuse those that want whole parameters."""
        super().setup_optimizers(trainer)
        if self.cuts_parameters:
            refuse_whole(self.optimizers, self.name)

    # Evaluation

    def on_validation_start(self) -> None:
        """Evaluate the first rank's buffers, which are what a checkpoint holds."""
        super().on_validation_start()
        buffers = self._connected_module.buffers()
        self._copy_first_rank(*(buffer for buffer in buffers if not buffer.is_meta))

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
