"""`strategy=tensor`, and tensor parallelism as an axis of a mesh: ranks share matrices of layers.

A plan (`plan.py`) shards layers by column and by row, so that a pair of layers needs one sum over
the ranks: parameters become DTensors, and `forward` is replaced. Names, classes, inputs and outputs
of layers do not change. A sharded parameter is a DTensor over the "tensor" axis alone, so that
FSDP2 can shard it again (here with one shard, so that all parameters are of one kind), and its
`full_tensor()` is the weight that a checkpoint holds. Between layers tensors are plain ones: with
PyTorch's ColwiseParallel and RowwiseParallel, which pass DTensors, a step has the same loss but
took 1.04 to 1.9 times as long on 2 CPU ranks (widths 512 to 128). They also support neither Conv1D
nor fused projections.

Exact: the loss curve of `single`, to float tolerance, with accumulation, clipping, frozen layers
and an uneven last batch. Not exact: dropout between sharded layers (the ranks draw the same masks
for different features); a line says so.
Rejects: layers that the ranks cannot share evenly. `onecurve.parity` shows whether a network
computes the same with a plan.
Memory per rank: parameters, gradients, optimizer state and activations of sharded layers, divided
by the number of ranks.
Source: M. Shoeybi et al., "Megatron-LM", 2019.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional as F

from ...arguments import configured_by
from ...compat.of_torch import is_in_backward, parameters_replaced
from ...errors import UserError, in_short
from ..fsdp.parallel import ShardedParameters
from ..layout import Part, move
from ..mesh.sizes import Sizes
from ..options import ShardOptions, TensorOptions
from ..parallelism import Applied, Parallelism, Setting
from ..strategy import OneCurve
from .plan import check_plan, find_plan, report_plan
from .regions import entered, full_sum, gathered, heads_forward, local, own_rows, summand
from .styles import (
    STYLES,
    calls_as,
    holds_parameters,
    in_features,
    is_linear,
    is_transposed,
    is_within,
    sections_of,
    share_counts,
    within,
)


class TensorParallel(Parallelism):
    """Shards the layers of a task over the ranks of a tensor group."""

    def __init__(self, given: Mapping[str, str] | str) -> None:
        self.given = given

    def is_needed(self, sizes: Sizes) -> bool:
        return sizes.tensor > 1

    def plan(self, task: LightningModule, parts: list[Part], setting: Setting) -> list[Part]:
        """Find, validate and print the plan of each part. Pairs of layers never span two parts."""
        strategy: Any = task.trainer.strategy
        size = setting.ranks.sizes.tensor
        for part in parts:
            part.plan = find_plan(task, part.layers, self.given, size)
        plan = {name: style for part in parts for name, style in part.plan.items()}
        check_plan(task, plan, size, f"strategy.tensor={size}")
        if setting.ranks.rank == 0 and strategy.prints_layers:
            report_plan(task, plan, size)
        return parts

    def apply(self, task: LightningModule, parts: list[Part], setting: Setting) -> Applied:
        """Shard the layers of this rank's parts."""
        if parts:
            move(task, setting.ranks.device)
        for part in parts:
            if part.plan:
                whole = setting.ranks.sizes.pipeline == 1
                apply_plan(task, part.plan, setting.ranks.mesh["tensor"], whole)
        return Applied()


def apply_plan(
    task: LightningModule, plan: Mapping[str, str], mesh: DeviceMesh, whole: bool = True
) -> None:
    """Shard the layers of a plan that `check_plan` has validated: in a pipeline, of one stage.

    Every rank of the mesh "tensor" calls this, with the same weights; `whole` if it is no stage.
    """
    modules: dict[str, Any] = dict(task.named_modules(remove_duplicate=False))
    entries: dict[str, _Entry] = {}
    sequences: dict[str, _Sequence] = {}
    shards: dict[nn.Parameter, nn.Parameter] = {}
    sharded: set[nn.Module] = set()
    # In this order a module comes before its submodules.
    for name, style in sorted(plan.items()):
        module = modules[name]
        entry = next((each for outer, each in entries.items() if is_within(name, outer)), None)
        if not holds_parameters(module):
            share_counts(module, mesh.size())
            entries[name] = _Entry(name, module, mesh, within(plan, name))
            continue
        sharded |= _shard(module, style, mesh, shards)
        if isinstance(module, nn.MultiheadAttention):
            module.forward = partial(heads_forward, module, mesh)  # type: ignore[method-assign]
            # With a hook, nn.TransformerEncoderLayer does not bypass `forward` by its fast path.
            module.register_forward_pre_hook(lambda *_: None)
        elif isinstance(module, nn.Embedding):
            module.forward = partial(_embedding, module, mesh)  # type: ignore[method-assign]
        else:
            outer, _, layer = name.rpartition(".")
            siblings = within(plan, outer)
            sections = sections_of(modules[outer], siblings, layer) if style == "fused" else None
            is_paired = calls_as(modules[outer], nn.Sequential) and "rowwise" in siblings.values()
            if whole and entry is None and is_paired:
                sequences[outer] = sequences.get(outer) or _Sequence(modules[outer])
            sequence = sequences.get(outer)
            module.forward = partial(_linear, module, style, sections or [], mesh, entry, sequence)
    for name, module in modules.items():
        # Each rank uses an unsharded parameter in there for its part of the result only.
        if module not in sharded and any(is_within(name, outer) for outer in entries):
            module.forward = partial(_with_summed_gradients, module, module.forward, mesh)


def _shard(
    module: nn.Module, style: str, mesh: DeviceMesh, shards: dict[nn.Parameter, nn.Parameter]
) -> set[nn.Module]:
    """Turn parameters into DTensors; one that is shared stays so. Returns the layers of them."""
    layers = set()
    for path, dim in STYLES[style].dims.items():
        holder, _, name = path.rpartition(".")
        layer = module.get_submodule(holder)
        layers.add(layer)
        full = getattr(layer, name, None)
        if full is None or isinstance(full, DTensor):
            continue
        if full not in shards:
            placements = [Shard(1 - dim if is_transposed(layer) and full.ndim > 1 else dim)]
            shard = distribute_tensor(full.detach(), mesh, placements, src_data_rank=None)
            # A copy, so that the memory of the full one is freed.
            shards[full] = nn.Parameter(shard.clone(), full.requires_grad)
        setattr(layer, name, shards[full])
    return layers


class _Entry:
    """The inputs of a module whose heads or hidden units are shared by ranks.

    Each rank computes a part of the result, so the gradients of what the sharded layers read must
    be summed over the ranks, once for all layers that read the same tensor. If these layers hold
    all parameters, only the gradients of what they read are summed: the module may also add its
    input to its result, as in a residual connection. Otherwise those of all inputs are.
    """

    def __init__(
        self, name: str, module: nn.Module, mesh: DeviceMesh, styles: Mapping[str, str]
    ) -> None:
        self.name = name
        self.mesh = mesh
        layers = {module.get_submodule(path): style for path, style in styles.items() if path}
        weights = {weight for layer in layers for weight in layer.parameters()}
        self._widths: set[int] = set()
        if weights.issuperset(module.parameters()):
            reading = [layer for layer, style in layers.items() if style != "rowwise"]
            self._widths = {in_features(layer) for layer in reading if is_linear(layer)}
        self._read: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None
        self._forward = module.forward
        module.forward = self._entered

    def read(self, inputs: torch.Tensor) -> torch.Tensor:
        """The tensor that a sharded layer computes with, given its input."""
        if not self._widths:
            return inputs
        if self._read is None:  # activation checkpointing recomputes this layer alone
            return entered(inputs, self.mesh)
        if id(inputs) not in self._read:
            self._read[id(inputs)] = inputs, entered(inputs, self.mesh)
        return self._read[id(inputs)][1]

    def _entered(self, *inputs: Any, **options: Any) -> Any:
        used = [
            entered(value, self.mesh) if self._enters(value) else value
            for value in (*inputs, *options.values())
        ]
        named = dict(zip(options, used[len(inputs) :], strict=True))
        self._read = {}
        try:
            return self._forward(*used[: len(inputs)], **named)
        except (RuntimeError, ValueError) as error:
            if not re.search("shape|size", str(error), re.IGNORECASE):
                raise
            raise UserError(
                f"strategy.plan: {self.name} holds only some of its heads or features on this "
                f"rank, but expects all of them ({in_short(error)}); write -1 for their number in "
                "views, or use strategy=fsdp"
            ) from error
        finally:
            self._read = None

    def _enters(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return False
        return value.ndim == 0 or value.shape[-1] not in self._widths


class _Sequence:
    """Which layers of an nn.Sequential run by themselves: a task may call some of them alone."""

    def __init__(self, sequence: nn.Module) -> None:
        self._runs = False
        self._alone: dict[nn.Module, bool] = {}
        sequence.register_forward_pre_hook(lambda *_: setattr(self, "_runs", True))
        sequence.register_forward_hook(lambda *_: setattr(self, "_runs", False), always_call=True)

    def is_alone(self, layer: nn.Module) -> bool:
        if not is_in_backward():  # where activation checkpointing recomputes the layer
            self._alone[layer] = not self._runs
        return self._alone.get(layer, False)


def _linear(
    layer: nn.Linear,
    style: str,
    sections: list[int],
    mesh: DeviceMesh,
    entry: _Entry | None,
    sequence: _Sequence | None,
    inputs: torch.Tensor,
) -> torch.Tensor:
    """What a sharded Linear layer returns: by its style (`plan.py`), or all, if called alone."""
    weight = local(layer.weight)
    weight = weight.T if is_transposed(layer) else weight  # (out, in)
    is_alone = sequence is not None and sequence.is_alone(layer)
    if style == "rowwise":
        if is_alone:
            inputs = entered(inputs, mesh).chunk(mesh.size(), -1)[mesh.get_local_rank()]
        return full_sum(F.linear(inputs, weight, summand(mesh, layer.bias)), mesh)
    bias = local(layer.bias)
    if style == "fused":
        weight, bias = own_rows(weight, bias, sections, mesh)
    outputs = F.linear(entry.read(inputs) if entry else entered(inputs, mesh), weight, bias)
    return gathered(outputs, mesh) if is_alone or style in ("colwise_gather", "vocab") else outputs


def _embedding(layer: nn.Embedding, mesh: DeviceMesh, indices: torch.Tensor) -> torch.Tensor:
    """Look up this rank's entries, zero for the others, and sum over the ranks."""
    weight = local(layer.weight)
    first = mesh.get_local_rank() * len(weight)
    is_elsewhere = (indices < first) | (indices >= first + len(weight))
    padding = layer.padding_idx
    if padding is not None:
        padding = padding - first if first <= padding < first + len(weight) else None
    outputs = F.embedding((indices - first).masked_fill(is_elsewhere, 0), weight, padding)
    return full_sum(outputs.masked_fill(is_elsewhere.unsqueeze(-1), 0), mesh)


def _with_summed_gradients(
    layer: nn.Module, forward: Callable[..., Any], mesh: DeviceMesh, *inputs: Any, **options: Any
) -> Any:
    parameters = {
        name: parameter
        for name, parameter in layer.named_parameters(recurse=False, remove_duplicate=False)
        if parameter.requires_grad and not isinstance(parameter, DTensor)
    }
    if not parameters or not torch.is_grad_enabled():
        return forward(*inputs, **options)
    used = {name: entered(parameter, mesh) for name, parameter in parameters.items()}
    with parameters_replaced(layer, used):
        return forward(*inputs, **options)


class Tensor(OneCurve, DDPStrategy):
    """Tensor parallelism for an ordinary LightningModule.

    The arguments are described in `TensorOptions`. A plan that is "auto" is the `tensor_plan()` of
    the network or its modules, and inferred for all others.
    """

    name = "tensor"

    @configured_by(TensorOptions, "strategy")
    def __init__(self, options: TensorOptions) -> None:
        # With a single shard there is nothing to free.
        shards = ShardOptions(
            wrap=options.wrap, forward_methods=options.forward_methods, reshard_after_forward=False
        )
        super().__init__(
            options,
            {"replicate": options.replicas, "tensor": "auto"},
            [TensorParallel(options.plan), ShardedParameters(shards)],
        )
