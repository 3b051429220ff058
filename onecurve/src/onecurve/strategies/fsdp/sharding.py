"""Applies PyTorch's FSDP2 to a network: which modules become units, and when they are freed.

A unit is a module whose parameters are gathered together. Smaller units need less memory at a time;
fewer units send fewer messages.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
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

from ...compat.of_torch import BatchNorm, is_in_forward
from ...compat.patches import replaced
from ...errors import UserError
from ..layers import CONTAINERS, called, find_layers
from ..options import ShardOptions
from .state import KeptChanges


class Sharding(NamedTuple):
    """Shards the parameters of a network."""

    options: ShardOptions

    def apply(self, module: nn.Module, mesh: DeviceMesh, precision: Precision) -> None:
        """Shard a task, or a stage of a pipeline: its units, then the remaining parameters.

        Parameters keep their names. A mesh with two dimensions is (replicate, shard).
        """
        low, frees = mixed_precision(precision), self.options.reshard_after_forward is not False
        if low.param_dtype is not None:
            # BatchNorm needs float32 parameters beside its float32 statistics: a unit of its own.
            for submodule in module.modules():
                if isinstance(submodule, BatchNorm) and submodule.affine:
                    self._shard(submodule, mesh, MixedPrecisionPolicy(), frees)
        units = [
            unit
            for unit in find_units(module, self.options.wrap)
            if any(parameter.ndim for parameter in unit.parameters())
        ]
        kept = last_units(module, units) if self.options.reshard_after_forward == "auto" else []
        for unit in units:
            if not isinstance(unit, FSDPModule):
                # A teacher has no backward pass, which would free it before its weights change.
                self._shard(unit, mesh, low, not trains(unit) or (frees and unit not in kept))
        units = [submodule for submodule in module.modules() if isinstance(submodule, FSDPModule)]
        of_units = {parameter for unit in units for parameter in unit.parameters()}
        of_units |= scalars_of(module)
        outside = any(parameter not in of_units for parameter in module.parameters())
        # As the root unit, the module lets one unit gather while another computes; but then its
        # `forward` must be called. A task without ordered layers, such as a GAN, may not do that.
        if outside or find_layers(module) is not None:
            # None: FSDP2's default, which does not free the root, because it is needed next.
            self._shard(module, mesh, low, None if frees else False)

    def _shard(
        self,
        module: nn.Module,
        mesh: DeviceMesh,
        policy: MixedPrecisionPolicy,
        reshard_after_forward: bool | None,
    ) -> None:
        offload = self.options.cpu_offload and mesh.device_type == "cuda"
        fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=reshard_after_forward,
            mp_policy=policy,
            offload_policy=CPUOffloadPolicy() if offload else OffloadPolicy(),
            ignored_params=scalars_of(module),
        )
        _keep_name(type(module))
        changes = KeptChanges(module)
        changes.of_forward()
        # The steps of a task are registered in `steps_as_forward`.
        by_name = () if isinstance(module, LightningModule) else ("forward",)
        for name in (*by_name, *self.options.forward_methods):
            if callable(getattr(type(module), name, None)):
                _gather_in(module, name, changes)


def _keep_name(sharded: type[nn.Module]) -> None:
    """Undo the prefix "FSDP": transformers looks up by a class's name what a network can return."""
    original = sharded.__mro__[2]  # after the class itself and FSDPModule
    for attribute in ("__name__", "__qualname__", "__module__"):
        setattr(sharded, attribute, getattr(original, attribute))


def scalars_of(module: nn.Module) -> set[nn.Parameter]:
    """The parameters without a dimension, such as a temperature: every rank holds them in full."""
    return {parameter for parameter in module.parameters() if parameter.ndim == 0}


def average_scalars(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Average the gradients of scalars, which FSDP2 ignores, over a group of ranks."""

    def average(parameter: Tensor) -> None:
        # Gradients accumulated from earlier batches are equal on all ranks: averaging keeps them.
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)

    for parameter in scalars_of(module):
        if parameter.is_floating_point():
            trains = parameter.requires_grad
            parameter.requires_grad_()  # a frozen one takes no hook, and may be trained later
            parameter.register_post_accumulate_grad_hook(average)  # type: ignore[no-untyped-call]
            parameter.requires_grad_(trains)


def _gather_in(unit: nn.Module, name: str, changes: KeptChanges) -> None:
    """Gather a unit for a method that is called by its name, such as ``encode(inputs)``."""
    method = getattr(unit, name)
    setattr(unit, name, changes.of(method))
    register_fsdp_forward_method(unit, name)
    gathered = getattr(unit, name)

    @wraps(method)
    def called(*args: Any, **options: Any) -> Any:
        is_inside = torch.compiler.is_compiling() or is_in_forward(cast(FSDPModule, unit))
        return (method if is_inside else gathered)(*args, **options)

    setattr(unit, name, called)


def mixed_precision(precision: Precision) -> MixedPrecisionPolicy:
    """The policy by which parameters are gathered in the type that autocast would use."""
    dtypes = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    dtype = dtypes.get(str(precision.precision))
    if dtype is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


STAYS_GATHERED = "_stays_gathered"  # in a step, the parameters of the task itself
STEPS = ("training_step", "validation_step", "test_step", "predict_step")


@contextmanager
def steps_as_forward(module: LightningModule) -> Iterator[None]:
    """Gather the parameters that are in no unit for a task's steps, as for its `forward`.

    A step may use such a parameter without calling `forward`, as in
    ``self.network(inputs) * self.scale``. Parameters of a unit are full inside that unit only.
    """
    changes = KeptChanges(module)
    with ExitStack() as stack:
        for name in (*STEPS, "_before_backward"):
            method = getattr(module, name, lambda loss: loss)
            stack.enter_context(replaced(module, name, changes.of(method)))
            register_fsdp_forward_method(module, name)
            # By it Lightning reads which arguments a step takes.
            step: Any = vars(module)[name]
            getattr(step, "__func__", step).__wrapped__ = getattr(method, "__wrapped__", method)
        stack.enter_context(replaced(module, "zero_grad", changes.zeroing(module.zero_grad)))
        if isinstance(module, FSDPModule):
            # FSDP2 makes the first module that is called the root: make sure that it is the task,
            # even if a callback calls a submodule first.
            before_backward(module, torch.zeros(()))
            module.reshard()
        yield


def before_backward(module: LightningModule, loss: Tensor) -> Tensor:
    """Pass a loss through a wrapped method of the task, so that FSDP2 hooks its backward pass."""
    hooked: Tensor = vars(module)["_before_backward"](loss)
    return hooked


def reshard(module: nn.Module) -> None:
    """Free the parameters that a forward pass without a backward pass has left gathered.

    Otherwise code that changes parameters would change the gathered copies, to no effect.
    """
    kept = module if STAYS_GATHERED in vars(module) else None
    for submodule in module.modules():
        if isinstance(submodule, FSDPModule) and submodule is not kept:
            submodule.reshard()


def freed_after_inference(module: nn.Module, *_: Any) -> None:
    """Call `reshard` after a forward pass without gradients; a forward hook."""
    if not torch.is_grad_enabled():
        reshard(module)


def set_plain_factories(module: nn.Module) -> None:
    """Make ``weight.new_zeros(...)`` and the like return plain tensors instead of DTensors.

    Tasks use them to create, for example, initial states, which must combine with plain tensors.
    """
    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            plain = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
            for name in ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"):
                setattr(parameter, name, getattr(plain, name))


def trains(module: nn.Module) -> bool:
    """Whether any parameter of a module is trained."""
    return any(parameter.requires_grad for parameter in module.parameters())


def is_sharded(module: nn.Module) -> bool:
    """Whether an earlier fit or test has sharded a module."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())


def find_units(module: nn.Module, wrap: str | Sequence[str]) -> list[nn.Module]:
    """The modules that become units, inner ones first.

    Args:
        module: The task, or a stage of a pipeline.
        wrap: "layer" for each layer (`find_layers`), or each child of a task without ordered
            layers; a list for all modules of these classes.
    """
    if wrap == "layer":
        layers = find_layers(module)
        units = called(module.children()) if layers is None else list(layers.values())
    else:
        # `modules()` yields parents before their children.
        units = [part for part in reversed(_parts(module)) if type(part).__name__ in wrap]
    # Without duplicates: a layer may be used several times.
    units = list(dict.fromkeys(units))
    # A parameter belongs to one unit: a tied parameter must not be used outside of it.
    uses = Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))
    times = Counter(part for _, part in module.named_modules(remove_duplicate=False))

    def is_closed(unit: nn.Module) -> bool:
        inside = Counter(param for _, param in unit.named_parameters(remove_duplicate=False))
        return all(uses[param] == count * times[unit] for param, count in inside.items())

    return [unit for unit in units if _has_parameters(unit) and is_closed(unit)]


def last_units(module: nn.Module, units: Sequence[nn.Module]) -> list[nn.Module]:
    """The units that a backward pass needs first: a head, and norms before it.

    A task without ordered layers has none.
    """
    layers = find_layers(module)
    order = [layer for layer in (layers or {}).values() if layer in units]
    last = order[-1:]
    for layer in reversed(order[:-1]):
        if any(parameter.ndim > 1 for parameter in layer.parameters()):
            break
        last.append(layer)
    return last


def check_wrap(module: nn.Module, wrap: str | Sequence[str]) -> None:
    """Reject a `wrap` that matches no modules of a task."""
    if isinstance(wrap, str):
        return
    classes = {type(part).__name__ for part in _parts(module)}
    for name in wrap:
        if name not in classes:
            raise UserError(
                f"strategy.wrap=[{','.join(wrap)}]: the task has no {name} with parameters; it "
                f"has {', '.join(sorted(classes))}, or use strategy.wrap=layer"
            )


def check_methods(module: nn.Module, names: Sequence[str]) -> None:
    """Reject `forward_methods` that no module of a task has."""
    for name in names:
        if not any(callable(getattr(type(part), name, None)) for part in module.modules()):
            raise UserError(
                f"strategy.forward_methods=[{','.join(names)}]: no module of "
                f"{type(module).__name__} has a method {name}; use strategy.forward_methods=[]"
            )


def _parts(module: nn.Module) -> list[nn.Module]:
    return [
        part
        for part in module.modules()
        if part is not module and _has_parameters(part) and not isinstance(part, CONTAINERS)
    ]


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
