"""How PyTorch's FSDP2 is put on a network: what is gathered together, and when it is freed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from ...compat.of_torch import BatchNorm
from ..layers import find_layers
from ..redirect import replaced
from .changed import KeptChanges
from .scalars import scalars_of
from .units import find_units, last_units


class Sharding(NamedTuple):
    """How the parameters of a network are cut.

    Args:
        wrap: What becomes a unit: "layer", "min_params" or a list of class names (`find_units`).
        min_params: Parameters of a unit at least, for ``wrap="min_params"``.
        reshard_after_forward: Free a unit's gathered parameters between forward and backward pass.
            "auto" frees all but the last ones, whose backward pass follows at once.
        cpu_offload: Keep shards, gradients and optimizer state in the CPU's memory, and update them
            there. On a CPU this changes nothing.
    """

    wrap: str | Sequence[str] = "layer"
    min_params: int = 1_000_000
    reshard_after_forward: Literal["auto"] | bool = "auto"
    cpu_offload: bool = False

    def apply(self, module: nn.Module, mesh: DeviceMesh, precision: Precision) -> None:
        """Shard a module in place: its units one by one, then what is in none of them.

        Args:
            module: A task, or a stage of a pipeline. Parameters keep their names.
            mesh: The ranks that hold a shard each; or, of two axes, groups of such ranks.
            precision: Lightning's.
        """
        low, frees = mixed_precision(precision), self.reshard_after_forward is not False
        if low.param_dtype is not None:
            # Beside its float32 statistics it wants float32 parameters: a unit of its own.
            for part in module.modules():
                if isinstance(part, BatchNorm) and part.affine:
                    self._shard(part, mesh, MixedPrecisionPolicy(), frees)
        units = [
            unit
            for unit in find_units(module, self.wrap, self.min_params)
            if any(parameter.ndim for parameter in unit.parameters())
        ]
        kept = last_units(module, units) if self.reshard_after_forward == "auto" else []
        for unit in units:
            if not isinstance(unit, FSDPModule):
                self._shard(unit, mesh, low, frees and unit not in kept)
        units = [part for part in module.modules() if isinstance(part, FSDPModule)]
        held = {parameter for unit in units for parameter in unit.parameters()}
        held |= scalars_of(module)
        outside = any(parameter not in held for parameter in module.parameters())
        # The whole ties its units together, so that one gathers while another computes; but then it
        # must be called. A task that names no layers may call its parts one by one, as a GAN does.
        if outside or find_layers(module) is not None:
            # None: as the units do, but it keeps what its backward pass wants at once.
            self._shard(module, mesh, low, None if frees else False)

    def _shard(
        self,
        module: nn.Module,
        mesh: DeviceMesh,
        policy: MixedPrecisionPolicy,
        reshard_after_forward: bool | None,
    ) -> None:
        offload = self.cpu_offload and mesh.device_type == "cuda"
        fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=reshard_after_forward,
            mp_policy=policy,
            offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy(),
            ignored_params=scalars_of(module),
        )
        KeptChanges(module).of_forward()


def mixed_precision(precision: Precision) -> MixedPrecisionPolicy:
    """Parameters are gathered in the type that Lightning's autocast would give them anyway."""
    dtypes = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    dtype = dtypes.get(str(precision.precision))
    if dtype is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


STEPS = ("training_step", "validation_step", "test_step", "predict_step")


@contextmanager
def steps_as_forward(module: LightningModule) -> Iterator[None]:
    """Let a task's steps have what `forward` has: the parameters that are in none of its units.

    A step may use such a parameter beside a network that it calls by another name, as in
    ``self.network(inputs) * self.scale``. What is in a unit is whole within that unit alone.
    """
    changes = KeptChanges(module)
    with ExitStack() as stack:
        for name in (*STEPS, "_before_backward"):
            method = changes.of(getattr(module, name, _as_it_is))
            stack.enter_context(replaced(module, name, method))
            register_fsdp_forward_method(module, name)
        if isinstance(module, FSDPModule):
            # The first one that is called is the root, for good: a callback may call a part before.
            before_backward(module, torch.zeros(()))
            module.reshard()
        yield


def before_backward(module: LightningModule, loss: Tensor) -> Tensor:
    """The loss of a step that starts its own backward pass, of which FSDP2 is to know."""
    known: Tensor = vars(module)["_before_backward"](loss)
    return known


def _as_it_is(value: Tensor) -> Tensor:
    return value


_in_step = ContextVar("_in_step", default=False)


@contextmanager
def within_step() -> Iterator[None]:
    """For a step of the task, which begins with its own parameters, and may go on using them."""
    token = _in_step.set(True)
    try:
        yield
    finally:
        _in_step.reset(token)


def reshard(module: nn.Module) -> None:
    """Free what a forward pass without a backward pass has left gathered.

    Else parameters would be copies until then, and who changes them would change nothing.
    """
    for part in module.modules():
        if isinstance(part, FSDPModule) and not (part is module and _in_step.get()):
            part.reshard()


def freed_after_inference(module: nn.Module, *_: Any) -> None:
    """As `reshard`, as a hook of `forward`: where no backward pass frees what was gathered."""
    if not torch.is_grad_enabled():
        reshard(module)


def set_plain_factories(module: nn.Module) -> None:
    """Let ``weight.new_zeros(...)`` make a whole tensor, as of a state that a step begins with.

    Of a shard it would be one as well, which nothing else can be computed with.
    """
    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            plain = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
            for name in ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"):
                setattr(parameter, name, getattr(plain, name))


def is_sharded(module: nn.Module) -> bool:
    """Whether a fit or test before has sharded a module."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())
