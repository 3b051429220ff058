"""A layer as one rank of a tensor group has it: matrices cut, and what the ranks tell each other.

The styles are those of `strategy.plan`. A module of another kind than nn.Linear and nn.Embedding is
not cut here; what it holds counts in full.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..strategies.tensor.families import head_counts


class Sent:
    """Bytes of the tensors that a pass of one layer reduces or gathers, whole.

    Attributes:
        reduced: Reduced over the tensor group, forward and backward.
        gathered: Gathered over the tensor group, forward and backward.
        keys: Keys and values, whole: what a context group gathers.
        calls: How many collectives there are.
    """

    def __init__(self) -> None:
        self.reduced = [0.0, 0.0]
        self.gathered = [0.0, 0.0]
        self.keys = 0.0
        self.calls = [0, 0]

    def part(self, size: int) -> "Sent":
        """Of a piece of every sequence; keys and values are gathered whole."""
        piece = Sent()
        piece.reduced = [each / size for each in self.reduced]
        piece.gathered = [each / size for each in self.gathered]
        piece.keys, piece.calls = self.keys, self.calls
        return piece


def local_shape(style: str | None, module: nn.Module, name: str, size: int) -> tuple[int, ...]:
    """The shape of a parameter as a rank of a tensor group has it.

    Args:
        style: Of the module; None if it is not cut.
        module: Whose parameter it is.
        name: Of the parameter, such as "weight".
        size: Ranks of the tensor group.
    """
    parameter = getattr(module, name)
    shape = list(parameter.shape)
    dimension = _dimension(style, module)
    if dimension is not None and parameter.ndim > dimension:
        shape[dimension] = math.ceil(shape[dimension] / size)
    return tuple(shape)


def cut(layer: nn.Module, styles: Mapping[str, str], size: int, sent: Sent) -> None:
    """Cut the modules of a layer in place, and note what each call of one sends.

    Args:
        layer: A copy that is used for nothing else.
        styles: Of modules by their names within the layer.
        size: Ranks of the tensor group.
        sent: What is added to.
    """
    if size == 1:
        return
    for part in layer.modules():
        # Where heads are cut, a module's own number of them is that of the rank.
        if any(style == "colwise" for style in styles.values()):
            for attribute, count in head_counts(part).items():
                if count % size == 0:
                    setattr(part, attribute, count // size)
    for name, style in styles.items():
        module = layer.get_submodule(name)
        if _dimension(style, module) is None:
            continue
        for own, parameter in list(module.named_parameters(recurse=False)):
            shape = local_shape(style, module, own, size)
            empty = torch.empty(shape, dtype=parameter.dtype, device=parameter.device)
            setattr(module, own, nn.Parameter(empty, parameter.requires_grad))
        if style == "rowwise" or isinstance(module, nn.Embedding):
            module.register_forward_hook(_leaving(sent))
        else:
            module.register_forward_pre_hook(_entering(sent))
        if style == "colwise_gather":
            module.register_forward_hook(_gathering(sent, size))


def _dimension(style: str | None, module: nn.Module) -> int | None:
    """Along which its matrix is cut."""
    if isinstance(module, nn.Linear):
        return {"colwise": 0, "colwise_gather": 0, "vocab": 0, "rowwise": 1}.get(style or "")
    return 0 if isinstance(module, nn.Embedding) and style == "vocab" else None


def _entering(sent: Sent) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        value = inputs[0]
        if isinstance(value, Tensor) and value.requires_grad:
            sent.reduced[1] += float(value.nbytes)
            sent.calls[1] += 1

    return hook


def _gathering(sent: Sent, size: int) -> Callable[..., Tensor]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        whole = torch.cat([output] * size, dim=-1)
        sent.gathered[0] += float(whole.nbytes)
        sent.calls[0] += 1
        return whole

    return hook


def _leaving(sent: Sent) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        sent.reduced[0] += float(output.nbytes)
        sent.calls[0] += 1

    return hook
