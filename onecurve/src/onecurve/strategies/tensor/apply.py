"""Cuts layers as a plan says: their parameters become DTensors, and their `forward` knows it.

Names, classes and what a layer takes and returns stay. A cut parameter is a DTensor over the
"tensor" axis alone, cut along one dimension without permutation, so that FSDP2 can cut it again and
its `full_tensor()` is the weight that a checkpoint holds. Between layers tensors are plain ones.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ...compat.of_torch import parameters_replaced
from ...errors import UserError, in_short
from .attention import heads_forward, local
from .collectives import Group, Region, SequenceRegion, joined, share, sum_gradients
from .families import dimension, head_counts, holds_parameters, is_within, linear
from .runs import runs_of
from .sharded_logits import cut_embedding, leave_logits


def apply_plan(
    module: LightningModule, plan: Mapping[str, str], mesh: DeviceMesh, sequence: bool
) -> None:
    """Cut the layers of a plan; each rank of the mesh calls this, with the same weights.

    Args:
        module: The task.
        plan: Names of modules and their styles, which `check_plan` has passed. Of a pipeline those
            of one stage: a sequence of pieces never passes the ends of a call.
        mesh: Of one dimension, named "tensor", a part of the mesh that FSDP2 will get.
        sequence: Whether what the plan calls `sequence` works on pieces of the sequence.
    """
    Cut(module, plan, Group(mesh), sequence).apply()


class Cut:
    """One call of `apply_plan`."""

    def __init__(
        self, module: LightningModule, plan: Mapping[str, str], group: Group, sequence: bool
    ) -> None:
        self.parts = dict(module.named_modules(remove_duplicate=False))
        self.plan = plan
        self.group = group
        self.whole = Region(group)
        named = [name for name, style in plan.items() if style == "sequence"] if sequence else []
        self.runs = runs_of(self.parts, named, group)
        # Of the uncut parameter, for layers that share it.
        self.made: dict[int, nn.Parameter] = {}
        self.kept: list[nn.Parameter] = []

    def apply(self) -> None:
        """Cut all."""
        entered = {name for name, style in self.plan.items() if self._is_entry(name, style)}
        for name, style in self.plan.items():
            part = self.parts[name]
            if style == "sequence":
                continue
            region = self._region(name)
            if name in entered:
                _share_heads(part, self.group.size)
                part.forward = partial(_entered, part.forward, region, name)
            elif isinstance(part, nn.MultiheadAttention):
                for weight in ("in_proj_weight", "in_proj_bias"):
                    self._cut(part, weight, 0)
                self._cut(part.out_proj, "weight", 1)
                part.forward = partial(heads_forward, part, region)  # type: ignore[method-assign]
                # What asks for hooks before it takes the parameters another way finds one.
                part.register_forward_pre_hook(lambda *_: None)
            elif isinstance(part, nn.Embedding):
                self._cut(part, "weight", 0)
                part.forward = partial(cut_embedding, part, self.group)  # type: ignore[method-assign]
            else:
                self._cut(part, "weight", dimension(part, of_inputs=style == "rowwise"))
                if style != "rowwise":
                    self._cut(part, "bias", 0)
                inside = any(is_within(name, entry) for entry in entered)
                part.forward = partial(FORWARD[style], part, region, inside)
        self._sum_gradients_within(entered | {name for run in self.runs for name in run.names})
        for run in self.runs:
            _cut_sequence(self.parts[run.names[0]], self.parts[run.names[-1]], run.region)

    def _is_entry(self, name: str, style: str) -> bool:
        own = not holds_parameters(self.parts[name])
        return own and style in ("heads", "colwise")

    def _region(self, name: str) -> Region:
        for run in self.runs:
            if any(is_within(name, held) for held in run.names):
                return run.region
        return self.whole

    def _cut(self, layer: nn.Module, name: str, dim: int) -> None:
        parameter = getattr(layer, name)
        if parameter is None or isinstance(parameter, DTensor):
            return
        if id(parameter) not in self.made:
            # A copy, so that the whole is given up.
            piece = parameter.detach().chunk(self.group.size, dim)[self.group.rank].clone()
            piece = DTensor.from_local(piece, self.group.mesh, [Shard(dim)], run_check=False)
            self.made[id(parameter)] = nn.Parameter(piece, parameter.requires_grad)
            self.kept.append(parameter)
        setattr(layer, name, self.made[id(parameter)])

    def _sum_gradients_within(self, names: set[str]) -> None:
        """Parameters that stay whole, but are used for a piece of what they belong to."""
        for name, part in self.parts.items():
            holder = self.parts.get(name.rpartition(".")[0])
            is_cut = name in self.plan and holds_parameters(part)
            if is_cut or (isinstance(holder, nn.MultiheadAttention) and _is_cut(holder)):
                continue
            uncut = any(not isinstance(own, DTensor) for own in part.parameters(recurse=False))
            if uncut and any(is_within(name, outer) for outer in names):
                part.forward = partial(_with_summed_gradients, part, part.forward, self.group)


def _is_cut(layer: nn.MultiheadAttention) -> bool:
    return isinstance(layer.in_proj_weight, DTensor)


def _colwise(layer: nn.Linear, region: Region, inside: bool, inputs: Tensor) -> Tensor:
    inputs = inputs if inside else region.enter(inputs)
    bias = None if layer.bias is None else local(layer.bias)
    return linear(layer, inputs, local(layer.weight), bias)


def _colwise_gather(layer: nn.Linear, region: Region, inside: bool, inputs: Tensor) -> Tensor:
    return region.pass_on(joined(region.group, _colwise(layer, region, inside, inputs), -1))


def _vocab(layer: nn.Linear, region: Region, inside: bool, inputs: Tensor) -> Tensor:
    logits: Tensor = leave_logits(region.group, _colwise(layer, region, inside, inputs))
    return logits


def _rowwise(layer: nn.Linear, region: Region, inside: bool, inputs: Tensor) -> Tensor:
    bias = None if layer.bias is None else share(region.group, layer.bias)
    return region.leave(linear(layer, inputs, local(layer.weight), bias))


FORWARD: dict[str, Callable[..., Tensor]] = {
    "colwise": _colwise,
    "colwise_gather": _colwise_gather,
    "rowwise": _rowwise,
    "vocab": _vocab,
}


def _share_heads(part: nn.Module, size: int) -> None:
    for name, count in head_counts(part).items():
        setattr(part, name, count // size)


def _entered(
    forward: Callable[..., Any], region: Region, name: str, *inputs: Any, **options: Any
) -> Any:
    """Read what comes in once for all layers within; only the first input is of the sequence."""
    outside = Region(region.group)
    used = [
        (outside if number else region).enter(value) if _flows(value) else value
        for number, value in enumerate([*inputs, *options.values()])
    ]
    named = dict(zip(options, used[len(inputs) :], strict=True))
    try:
        return forward(*used[: len(inputs)], **named)
    except (RuntimeError, ValueError) as error:
        if not re.search("shape|size", str(error), re.IGNORECASE):
            raise
        raise UserError(
            f"strategy.plan: {name} has a share of its heads or features here, and counts on all "
            f"of them ({in_short(error)}); let it leave their number -1 in views, give "
            "strategy.plan={...} without it, or use strategy=fsdp"
        ) from error


def _flows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _with_summed_gradients(
    layer: nn.Module, forward: Callable[..., Any], group: Group, *inputs: Any, **options: Any
) -> Any:
    own = {
        name: parameter
        for name, parameter in layer.named_parameters(recurse=False, remove_duplicate=False)
        if parameter.requires_grad and not isinstance(parameter, DTensor)
    }
    if not own or not torch.is_grad_enabled():
        return forward(*inputs, **options)
    used = sum_gradients(group, *own.values())
    with parameters_replaced(layer, dict(zip(own, used, strict=True))):
        return forward(*inputs, **options)


def _cut_sequence(first: nn.Module, last: nn.Module, region: SequenceRegion) -> None:
    """Have the sequence cut where the first begins, and put together where the last ends."""
    begin, end = first.forward, last.forward

    def begun(whole: Tensor, *others: Any, **options: Any) -> Any:
        return begin(region.cut(whole), *others, **options)

    first.forward = begun
    if last is first:
        end = begun

    def ended(*inputs: Any, **options: Any) -> Any:
        made = end(*inputs, **options)
        if isinstance(made, tuple):
            return (region.join(made[0]), *made[1:])
        return region.join(made)

    last.forward = ended
