"""A network as a plan sees it: its layers, of which equal ones are looked at once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..compat.of_torch import tree_map
from ..errors import UserError, in_short
from ..strategies.pipeline.shapes import FLOPS_PER_BYTE
from ..strategies.tensor.checks import check_one
from .kinds import kind_of, within
from .layer_passes import BATCH, Conditions, Passes, Tensors, on_a_piece, passes
from .operations import Numbers
from .precision import Precision
from .tensor_parts import local_shape


class Held(NamedTuple):
    """What a rank has of a layer's parameters and buffers."""

    parameters: int
    """Numbers in its part of them."""
    trained: int
    """Of these, in parameters that require gradients."""
    tensors: int
    """How many of such parameters there are."""
    gathered: int
    """Numbers in all of them, as the layer uses them on this rank."""
    buffers: int
    """Bytes."""


class Network:
    """The layers of a task, what enters them, and how they are cut.

    Attributes:
        factors: For a kind of layers, how many times as long as estimated its forward and its
            backward pass take, where that was measured.

    Args:
        layers: In order and by name, with parameters anywhere, such as the meta device.
        inputs: What enters the network, of one sample or more, on any device.
        loss: Of outputs and targets; None leaves it out.
        targets: What the loss compares with: a tree of tensors with a row a sample.
        plan: Styles by the names of modules: how a tensor group cuts them.
        precision: Types of the run.
        fused: Whether elementwise operations are one pass over memory.
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
        self.inputs = tuple(_rows(value, BATCH) for value in inputs)
        self.styles = [within(name, plan or {}) for name in layers]
        self._counted: dict[int, str] = {}
        self.kinds = [
            kind_of(name, layer, styles, self._counted)
            for (name, layer), styles in zip(self.layers.items(), self.styles, strict=True)
        ]
        self._first = {kind: index for index, kind in reversed(list(enumerate(self.kinds)))}
        self._passes: dict[Any, Passes] = {}
        self.held = cache(self._held)
        self.chain = cache(self._chain)
        self.costs = cache(self._costs)
        self.undivided = cache(self._undivided)
        self.totals = cache(self._totals)
        self.factors: dict[Any, tuple[float, float]] = {}
        self.waits: dict[Any, tuple[float, float]] = {}

    @property
    def length(self) -> int | None:
        """Positions of a sequence, where one dimension of all inputs may be that."""
        lengths = {value.shape[1] for value in self.inputs if value.ndim in (2, 3)}
        every = all(value.ndim in (2, 3) for value in self.inputs)
        return int(lengths.pop()) if every and len(lengths) == 1 else None

    @property
    def cut_in_tensors(self) -> bool:
        """Whether there is anything that a tensor group cuts."""
        return any(self.styles)

    @property
    def attends(self) -> bool:
        """Whether it calls `scaled_dot_product_attention`."""
        return any(each.forward.is_attention.any() for each in self.chain(Conditions()))

    def _undivided(self, tensor: int) -> str:
        """What a tensor group of that size does not divide; empty if it divides all."""
        for (outer, layer), styles in zip(self.layers.items(), self.styles, strict=True):
            for name, style in styles.items():
                path = f"{outer}.{name}".rstrip(".")
                try:
                    check_one(path, layer.get_submodule(name), style, tensor, "tensor")
                except UserError as error:
                    return str(error).removeprefix("tensor: ").partition(";")[0]
        return ""

    def _costs(self, samples: int) -> tuple[float, ...]:
        """The cost of each layer, as `strategy=pipeline` cuts by: see `LayerShapes.costs`."""
        found = []
        before = False
        for layer, each in zip(self.layers.values(), self.chain(Conditions()), strict=False):
            own = list(layer.parameters())
            passed = 1 + before + any(parameter.requires_grad for parameter in own)
            size = sum(p.nbytes for p in own) + each.output_bytes * samples
            work = float(each.forward.flops.sum()) * samples + FLOPS_PER_BYTE * size
            found.append(passed * work)
            before = any(value.requires_grad for value in each.outputs)
        return tuple(found)

    def _chain(self, conditions: Conditions) -> list[Passes]:
        """The passes of each layer, and last those of the loss.

        Raises:
            UserError: If a layer cannot run without data.
        """
        if (size := conditions.context) > 1:
            whole = self.chain(conditions._replace(context=1))
            # The loss is that of whole sequences, on every rank.
            layers, loss = whole[: len(self.layers)], whole[len(self.layers) :]
            return [self._piece(each, size) for each in layers] + loss
        current = self.inputs
        if self.precision.low is None and self.precision.stored != torch.float32:
            current = tuple(
                value.to(self.precision.stored) if value.is_floating_point() else value
                for value in current
            )
        found = []
        each_layer = zip(self.kinds, self.styles, self.layers.items(), strict=True)
        for kind, styles, (name, layer) in each_layer:
            own = conditions if styles else conditions._replace(tensor=1)
            key = (kind, own, *((x.shape, x.dtype, x.requires_grad) for x in current))
            if key not in self._passes:
                with _said(name):
                    self._passes[key] = passes(
                        layer, current, own._replace(fused=self.fused), styles, self._context
                    )
            found.append(self._passes[key])
            current = found[-1].outputs
        if self.loss is not None:
            found.append(self._loss_of(current))
        return found

    def _piece(self, whole: Passes, size: int) -> Passes:
        """Of equal layers one, as before."""
        key = ("piece", id(whole), size)
        if key not in self._passes:
            self._passes[key] = on_a_piece(whole, size)
        return self._passes[key]

    def _loss_of(self, whole: Tensors) -> Passes:
        loss = self.loss
        assert loss is not None

        def run(*values: Tensor) -> Any:
            targets = tree_map(
                lambda x: (
                    torch.empty((BATCH, *x.shape[1:]), dtype=x.dtype)
                    if isinstance(x, Tensor)
                    else x
                ),
                self.targets,
            )
            return loss(values[0] if len(values) == 1 else values, targets)

        plain = Conditions(fused=self.fused)
        key = ("loss", *((x.shape, x.dtype) for x in whole))
        if key not in self._passes:
            with _said("the task's loss"):
                self._passes[key] = passes(run, whole, plain, {}, self._context)
        return self._passes[key]

    def _context(self) -> AbstractContextManager[Any]:
        return self.precision.context()

    def _totals(self, tensor: int, shards: int) -> Numbers:
        """Sums of what is held of the layers before each, a column for each kind of `Held`."""
        rows = [tuple(self.held(kind, tensor, shards)) for kind in self.kinds]
        return np.concatenate([np.zeros((1, len(Held._fields))), np.cumsum(rows, axis=0)])

    def of_layers(self, layers: Sequence[range], tensor: int, shards: int) -> Held:
        """What a rank with some ranges of layers holds."""
        totals = self.totals(tensor, shards)
        return Held(*sum(totals[each.stop] - totals[each.start] for each in layers))

    def _held(self, kind: Any, tensor: int, shards: int) -> Held:
        """What a rank has of a layer of a kind.

        Args:
            kind: One of `kinds`.
            tensor: Ranks among which matrices are cut.
            shards: Ranks among which every parameter is cut along its first dimension.
        """
        index = self._first[kind]
        name, layer = list(self.layers.items())[index]
        styles = self.styles[index]
        parameters = trained = tensors = gathered = 0
        for path, parameter in layer.named_parameters():
            if self._counted[id(parameter)] != name:
                continue
            module, _, own = path.rpartition(".")
            shape = local_shape(styles.get(module), layer.get_submodule(module), own, tensor)
            first, rest = (shape or (1,))[0], 1
            for size in shape[1:]:
                rest *= size
            part = ceil(first / shards) * rest
            parameters += part
            gathered += first * rest
            if parameter.requires_grad:
                trained += part
                tensors += 1
        buffers = sum(buffer.nbytes for buffer in layer.buffers())
        return Held(parameters, trained, tensors, gathered, buffers)


@contextmanager
def _said(name: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"model: {name} cannot run without data ({type(error).__name__}: {in_short(error)}); "
            "change it so that no shape and no branch depends on values"
        ) from error


def _rows(value: Tensor, number: int) -> Tensor:
    return torch.empty((number, *value.shape[1:]), dtype=value.dtype, device="meta")
