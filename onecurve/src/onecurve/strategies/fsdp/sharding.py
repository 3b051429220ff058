"""How PyTorch's FSDP2 is put on a network: what is gathered together, and when it is freed."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch.plugins.precision import Precision
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..layers import find_layers
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
                if isinstance(part, _BatchNorm) and part.affine:
                    self._shard(part, mesh, MixedPrecisionPolicy(), frees)
        units = find_units(module, self.wrap, self.min_params)
        kept = last_units(module, units) if self.reshard_after_forward == "auto" else []
        for unit in units:
            if not isinstance(unit, FSDPModule):
                self._shard(unit, mesh, low, frees and unit not in kept)
        units = [part for part in module.modules() if isinstance(part, FSDPModule)]
        held = {parameter for unit in units for parameter in unit.parameters()}
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
        )


def mixed_precision(precision: Precision) -> MixedPrecisionPolicy:
    """Parameters are gathered in the type that Lightning's autocast would give them anyway."""
    dtypes = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    dtype = dtypes.get(str(precision.precision))
    if dtype is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


def reshard(module: nn.Module) -> None:
    """Free what a forward pass without a backward pass has left gathered.

    Else parameters would be copies until then, and who changes them would change nothing.
    """
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def freed_after_inference(module: nn.Module, *_: Any) -> None:
    """As `reshard`, as a hook of `forward`: where no backward pass frees what was gathered."""
    if not torch.is_grad_enabled():
        reshard(module)


def is_sharded(module: nn.Module) -> bool:
    """Whether a fit or test before has sharded a module."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())
