"""How PyTorch's FSDP2 is put on a network: what is gathered together, and when it is freed.

A unit is a module whose parameters are gathered together. The fewer parameters a unit has, the less
memory is used at a time; the fewer units there are, the fewer messages are sent.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, cast

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

from ...compat.of_torch import BatchNorm, gather_before_backward, tree_leaves
from ...errors import UserError
from ..layers import CONTAINERS, called, find_layers
from ..redirect import replaced
from .changed import KeptChanges


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
        module.register_forward_hook(_look_into_objects)


def scalars_of(module: nn.Module) -> set[nn.Parameter]:
    """The parameters that have no dimension, such as a temperature: every rank has them in full."""
    return {parameter for parameter in module.parameters() if parameter.ndim == 0}


def average_scalars(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Average their gradients, which FSDP2 leaves alone, over ranks that see different samples."""

    def average(parameter: Tensor) -> None:
        # What earlier batches have accumulated is the same everywhere, and stays so.
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)

    for parameter in scalars_of(module):
        parameter.register_post_accumulate_grad_hook(average)  # type: ignore[no-untyped-call]


def _look_into_objects(unit: nn.Module, _: Any, output: Any) -> None:
    """Find outputs in a Distribution or another object: FSDP2 looks into trees of tensors alone.

    A unit of which it sees no output would be freed for good, or its gradients never averaged.
    """
    if isinstance(output, Tensor):
        return
    others = [leaf for leaf in tree_leaves(output) if not isinstance(leaf, Tensor)]
    if tensors := list(_tensors_in(others, set())):
        gather_before_backward(cast(FSDPModule, unit), tensors)


def _tensors_in(value: Any, seen: set[int]) -> Iterator[Tensor]:
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            if leaf.grad_fn is not None:
                yield leaf
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, nn.Module) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield from _tensors_in(vars(leaf), seen)


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


def find_units(module: nn.Module, wrap: str | Sequence[str], min_params: int) -> list[nn.Module]:
    """The modules to shard one by one, inner ones first. What is in none is left to the whole.

    Args:
        module: The task, or a stage of a pipeline.
        wrap: "layer" takes each layer (`find_layers`), or each child of a task that names no
            layers; "min_params" takes the smallest modules with so many parameters; a list takes
            all modules of these classes.
        min_params: For ``wrap="min_params"``.

    """
    if wrap == "layer":
        layers = find_layers(module)
        units = called(module.children()) if layers is None else list(layers.values())
    elif wrap == "min_params":
        units = _by_size(module, min_params)
    else:
        # `modules()` yields parents before their children.
        units = [part for part in reversed(_parts(module)) if type(part).__name__ in wrap]
    # Once each, however often it is used.
    units = list(dict.fromkeys(each for unit in units for each in _made_units(unit)))
    # A parameter is gathered by one unit alone: a tied one must not be used outside of it.
    uses = Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))
    times = Counter(part for _, part in module.named_modules(remove_duplicate=False))

    def is_closed(unit: nn.Module) -> bool:
        inside = Counter(param for _, param in unit.named_parameters(remove_duplicate=False))
        return all(uses[param] == count * times[unit] for param, count in inside.items())

    return [unit for unit in units if _has_parameters(unit) and is_closed(unit)]


def _made_units(part: nn.Module) -> list[nn.Module]:
    """A part itself, or its parts where FSDP2 cannot make another class of it.

    Python does not let an object have another class whose bases lie otherwise in memory, as those
    of ``class Network(ABC, nn.Module)`` do. What such a part holds itself is left to the whole.
    """
    blank = object.__new__(type(part))
    try:
        object.__setattr__(blank, "__class__", type("Unit", (FSDPModule, type(part)), {}))
    except TypeError:
        return [unit for child in called(part.children()) for unit in _made_units(child)]
    return [part]


def last_units(module: nn.Module, units: Sequence[nn.Module]) -> list[nn.Module]:
    """The units that a backward pass asks for first: a head, and norms before it.

    Args:
        module: The task; one that names no layers has no last one.
        units: All of them.
    """
    layers = find_layers(module)
    order = [layer for layer in (layers or {}).values() if layer in units]
    last = order[-1:]
    for layer in reversed(order[:-1]):
        if any(parameter.ndim > 1 for parameter in layer.parameters()):
            break
        last.append(layer)
    return last


def _by_size(module: nn.Module, min_params: int) -> list[nn.Module]:
    units: list[nn.Module] = []

    def visit(part: nn.Module) -> int:
        """Collect units in a part; returns how many of its parameters are in none."""
        if isinstance(part, nn.MultiheadAttention):
            # It uses its output layer's parameters without calling that layer.
            left = sum(parameter.numel() for parameter in part.parameters())
        else:
            left = sum(parameter.numel() for parameter in part.parameters(recurse=False))
            left += sum(visit(child) for child in part.children())
        if left < min_params or isinstance(part, CONTAINERS):
            return left
        units.append(part)
        return 0

    for child in module.children():
        visit(child)
    return units


def check_wrap(module: nn.Module, wrap: str | Sequence[str]) -> None:
    """Reject what names no units of a task."""
    if wrap in ("layer", "min_params"):
        return
    if isinstance(wrap, str):
        raise UserError(
            f"strategy.wrap={wrap}: must be layer, min_params or a list of class names, such as "
            "strategy.wrap=[Linear]; use strategy.wrap=layer"
        )
    classes = {type(part).__name__ for part in _parts(module)}
    for name in wrap:
        if name not in classes:
            raise UserError(
                f"strategy.wrap=[{','.join(wrap)}]: the task has no {name} with parameters; it "
                f"has {', '.join(sorted(classes))}, or use strategy.wrap=layer"
            )


def _parts(module: nn.Module) -> list[nn.Module]:
    return [
        part
        for part in module.modules()
        if part is not module and _has_parameters(part) and not isinstance(part, CONTAINERS)
    ]


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
