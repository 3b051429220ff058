"""What is planned: a network, of whose layers equal ones are run once, a batch, and devices."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..compat.of_torch import tree_map_only
from ..errors import UserError, in_short
from ..machine import full_precision_name
from ..strategies.pipeline.shapes import FLOPS_PER_BYTE
from ..strategies.tensor.plan import check_one
from .hardware import Hardware
from .layers import BATCH, Conditions, Passes, Tensors, local_shape, on_context_shard, run_layer
from .operations import Numbers


class Precision(NamedTuple):
    """The type of parameters, gradients and optimizer state, and that of autocast, if it is on."""

    stored: torch.dtype
    low: torch.dtype | None

    @classmethod
    def named(cls, name: str) -> "Precision":
        """The precision of a value of `trainer.precision`."""
        bits, _, kind = full_precision_name(name).partition("-")
        types = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64}
        dtype = types.get(bits, torch.float32)
        return cls(torch.float32, dtype) if kind == "mixed" else cls(dtype, None)

    def of_layers(self, is_sharded: bool) -> torch.dtype | None:
        """The type in which layers get their parameters, if it is not float32."""
        if self.low is not None:
            return self.low if is_sharded else None
        return self.stored if self.stored.itemsize != 4 else None

    def context(self) -> AbstractContextManager[Any]:
        """Autocast for a forward pass, or nothing."""
        if self.low is None:
            return nullcontext()
        # For the CPU, whose fake tensors stand for any device.
        return torch.autocast("cpu", torch.bfloat16)


class Held(NamedTuple):
    """What a rank holds of a layer's parameters and buffers."""

    parameters: int  # numbers in its shards of them
    trained: int  # of these, in parameters that require gradients
    tensors: int  # how many such parameters there are
    gathered: int  # numbers in the unsharded parameters, as the layer uses them on this rank
    buffers: int  # bytes


class Network:
    """The layers of a task, their inputs, and how a tensor group shards them.

    Args:
        layers: In order and by name, with parameters on any device, such as meta.
        inputs: Inputs of the network, of one sample or more, on any device.
        loss: Of outputs and targets; None leaves it out.
        targets: Targets of the loss: a tree of tensors with a row for each sample.
        plan: Styles of a tensor group by the names of modules.
        precision: Types of the run.
        fused: Whether layers are compiled: see `run_layer`.
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        inputs: Tensors,
        *,
        loss: Callable[[Any, Any], Tensor] | None = None,
        targets: Any = None,
        plan: Mapping[str, str] | None = None,
        precision: Precision,
        fused: bool = False,
    ) -> None:
        self.layers = dict(layers)
        self.loss = loss
        self.targets = targets
        self.precision = precision
        self.fused = fused
        self.inputs = tuple(
            torch.empty((BATCH, *value.shape[1:]), dtype=value.dtype, device="meta")
            for value in inputs
        )
        self.styles = [_styles_within(name, plan or {}) for name in layers]
        self._owners: dict[int, str] = {}
        self.kinds = [
            _kind_of(name, layer, styles, self._owners)
            for (name, layer), styles in zip(self.layers.items(), self.styles, strict=True)
        ]
        self._first = {kind: index for index, kind in reversed(list(enumerate(self.kinds)))}
        self._passes: dict[Any, Passes] = {}
        # Every mesh asks the same; of this network alone, which the cache must not keep alive.
        for method in ("held", "chain", "costs", "undivided", "totals", "saved", "flops"):
            setattr(self, method, cache(getattr(self, method)))

    @property
    def length(self) -> int | None:
        """Positions of a sequence, where one dimension may be that; rows of numbers are a table."""
        lengths = {value.shape[1:2] for value in self.inputs}
        every = all(x.ndim == 3 or (x.ndim == 2 and not x.is_floating_point()) for x in self.inputs)
        return int(lengths.pop()[0]) if every and len(lengths) == 1 else None

    @property
    def has_tensor_plan(self) -> bool:
        """Whether there is anything that a tensor group shards."""
        return any(self.styles)

    @property
    def attends(self) -> bool:
        """Whether it calls `scaled_dot_product_attention`."""
        return any(each.forward.is_attention.any() for each in self.chain(Conditions()))

    def undivided(self, tensor: int) -> str:
        """What a tensor group of that size does not divide; empty if it divides everything."""
        for (outer, layer), styles in zip(self.layers.items(), self.styles, strict=True):
            for name, style in styles.items():
                path = f"{outer}.{name}".rstrip(".")
                try:
                    check_one(path, layer.get_submodule(name), style, tensor, "tensor")
                except UserError as error:
                    return str(error).removeprefix("tensor: ").partition(";")[0]
        return ""

    def costs(self, samples: int) -> tuple[float, ...]:
        """The cost of each layer, as `strategy=pipeline` computes it: see `LayerShapes.costs`."""
        costs = []
        before = False
        for layer, each in zip(self.layers.values(), self.chain(Conditions()), strict=False):
            parameters = list(layer.parameters())
            passed = 1 + before + any(parameter.requires_grad for parameter in parameters)
            size = sum(p.nbytes for p in parameters) + each.output_bytes * samples
            work = float(each.forward.flops.sum()) * samples + FLOPS_PER_BYTE * size
            costs.append(passed * work)
            before = any(value.requires_grad for value in each.outputs)
        return tuple(costs)

    def chain(self, conditions: Conditions) -> list[Passes]:
        """The passes of each layer, and last those of the loss."""
        if (size := conditions.context) > 1:
            full = self.chain(conditions._replace(context=1))
            # Every rank computes the loss of full sequences.
            layers, loss = full[: len(self.layers)], full[len(self.layers) :]
            shard = [
                self._once(("context", id(each), size), "", partial(on_context_shard, each, size))
                for each in layers
            ]
            return shard + loss
        current = self.inputs
        if self.precision.low is None and self.precision.stored != torch.float32:
            current = tuple(
                value.to(self.precision.stored) if value.is_floating_point() else value
                for value in current
            )
        chain: list[Passes] = []
        key: tuple[Any, ...]
        how = (self.precision.context, self.fused)
        each_layer = zip(self.kinds, self.styles, self.layers.items(), strict=True)
        for kind, styles, (name, layer) in each_layer:
            of_layer = conditions if styles else conditions._replace(tensor=1)
            key = (kind, of_layer, *((x.shape, x.dtype, x.requires_grad) for x in current))
            run = partial(run_layer, layer, current, of_layer, styles, *how)
            chain.append(self._once(key, name, run))
            current = chain[-1].outputs
        if self.loss is not None:
            key = ("loss", *((x.shape, x.dtype) for x in current))
            run = partial(run_layer, self._loss, current, Conditions(), {}, *how)
            chain.append(self._once(key, "the task's loss", run))
        return chain

    def _once(self, key: Any, name: str, run: Callable[[], Passes]) -> Passes:
        """What a layer computes; equal ones share an object, as it is a key of what follows."""
        try:
            if key not in self._passes:
                self._passes[key] = run()
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"model: {name} cannot run without data ({type(error).__name__}: "
                f"{in_short(error)}); change it so that no shape and no branch depends on values"
            ) from error
        return self._passes[key]

    def _loss(self, *outputs: Tensor) -> Any:
        assert self.loss is not None
        targets = tree_map_only(
            Tensor, lambda x: torch.empty((BATCH, *x.shape[1:]), dtype=x.dtype), self.targets
        )
        return self.loss(outputs[0] if len(outputs) == 1 else outputs, targets)

    def flops(self) -> float:
        """FLOPs of forward and backward passes for a sample, without recomputation."""
        plain = self.chain(Conditions(dtype=self.precision.of_layers(is_sharded=False)))
        return sum(float(each.forward.flops.sum() + each.backward.flops.sum()) for each in plain)

    def saved(self, conditions: Conditions, stage: range) -> tuple[float, float]:
        """Bytes that a stage saves of a micro-batch for its backward pass: by sample, and once.

        What lies between two layers counts once where either saves it; not a view of what has
        counted, nor the batch itself. The loss belongs to the last stage.
        """
        chain = self.chain(conditions)
        layers = list(stage)
        if stage.stop == len(self.layers) and len(chain) > len(self.layers):
            layers.append(len(self.layers))
        total = once = 0.0
        output_saved = counted = False
        of_batch = layers[0] == 0
        for layer in layers:
            each = chain[layer]
            by_sample, fixed = each.held
            input_saved = output_saved or each.holds_input
            if input_saved and not counted and not of_batch:
                total += each.input_bytes
            total += by_sample
            once += fixed
            counted = each.passes_on and (counted or input_saved)
            of_batch = of_batch and each.passes_on
            output_saved = each.holds_output
        return total + (chain[layers[-1]].output_bytes if output_saved else 0.0), once

    def totals(self, tensor: int, shards: int) -> Numbers:
        """Sums of what is held of all layers before each, a column for each field of `Held`."""
        rows = [tuple(self.held(kind, tensor, shards)) for kind in self.kinds]
        return np.concatenate([np.zeros((1, len(Held._fields))), np.cumsum(rows, axis=0)])

    def of_layers(self, layers: Sequence[range], tensor: int, shards: int) -> Held:
        """What a rank with some ranges of layers holds."""
        totals = self.totals(tensor, shards)
        return Held(*sum(totals[each.stop] - totals[each.start] for each in layers))

    def held(self, kind: Any, tensor: int, shards: int) -> Held:
        """What a rank holds of a layer of one of `kinds`.

        Matrices are sharded among `tensor` ranks, and the first dimension of every parameter among
        `shards`.
        """
        index = self._first[kind]
        name, layer = list(self.layers.items())[index]
        styles = self.styles[index]
        parameters = trained = tensors = gathered = 0
        for path, parameter in layer.named_parameters():
            if self._owners[id(parameter)] != name:
                continue
            module, _, own = path.rpartition(".")
            shape = local_shape(styles.get(module), layer.get_submodule(module), own, tensor)
            first, *others = shape or (1,)
            shard = ceil(first / shards) * prod(others)
            parameters += shard
            gathered += first * prod(others)
            if parameter.requires_grad:
                trained += shard
                tensors += 1
        buffers = sum(buffer.nbytes for buffer in layer.buffers())
        return Held(parameters, trained, tensors, gathered, buffers)


def _styles_within(layer: str, plan: Mapping[str, str]) -> dict[str, str]:
    styles = {}
    for name, style in plan.items():
        if name == layer:
            styles[""] = style
        elif name.startswith(f"{layer}."):
            styles[name.removeprefix(f"{layer}.")] = style
    return styles


def _kind_of(
    name: str, layer: nn.Module, styles: Mapping[str, str], owners: dict[int, str]
) -> tuple[Any, ...]:
    """Equal for two layers that compute the same of data of the same shape.

    A parameter that layers share counts for its owner, the first of them.
    """
    parameters = []
    for path, parameter in layer.named_parameters():
        owner = owners.setdefault(id(parameter), name)
        facts = (path, tuple(parameter.shape), parameter.dtype, parameter.requires_grad)
        parameters.append((*facts, owner == name))
    plain = (int, float, bool, str)
    settings = [
        (path, key, value)
        for path, submodule in layer.named_modules()
        for key, value in vars(submodule).items()
        if isinstance(value, plain) and not key.startswith("__")
    ]
    return (str(layer), tuple(parameters), tuple(settings), tuple(styles.items()))


class StateSize(NamedTuple):
    """What an optimizer keeps of a parameter: copies, and bytes of scalars, such as a count."""

    copies: float
    bytes: float


ADAMW = StateSize(2, 4)


class Request(NamedTuple):
    """What is planned."""

    network: Network
    hardware: Hardware
    ranks: int  # of all nodes
    per_node: int  # ranks of a node
    batch: int  # samples of a step, over all ranks
    state: StateSize = ADAMW
    schedules: tuple[str, ...] = ("1f1b", "interleaved_1f1b", "zbv")  # those that pipelines may use
    microbatches: int | None = None  # of a pipeline; None for the best number
    checkpointing: tuple[str, ...] = ("none", "selective", "full")  # the first that fits is taken
    fsdp: bool = False  # whether FSDP2 holds the parameters of a single rank, too
    free: float = 0.08  # share of the memory that is left free

    @property
    def room(self) -> float:
        """Bytes that a rank may hold."""
        each = self.hardware.memory
        if self.hardware.shared_cores:
            # The ranks of a CPU share its memory.
            each /= min(self.ranks, self.per_node)
        return each * (1 - self.free)

    @property
    def crowd(self) -> float:
        """How many ranks take turns on a core."""
        cores = self.hardware.shared_cores
        return max(1.0, min(self.ranks, self.per_node) / cores) if cores else 1.0
