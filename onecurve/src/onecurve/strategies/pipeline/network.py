"""The network of a task that is cut into stages, and what it is called by."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from lightning.pytorch import LightningModule
from torch import nn

from ...errors import UserError
from ..layers import find_layers, opened
from .blocks import Blocks, find_blocks
from .split import direct_tensors, split_at_children, split_network


class Network(NamedTuple):
    """Layers whose composition is what one module computes, or the code around blocks."""

    name: str
    """What the task calls it by."""

    owner: nn.Module
    """Whose call passes through the pipeline: an nn.Sequential anywhere within, or the task."""
    layers: dict[str, nn.Module]
    """In order, by their dotted names in the task."""
    blocks: Blocks | None = None
    """Where code calls the layers one by one."""

    def calls(self) -> dict[str, nn.Module]:
        """What takes tensors and returns tensors, for each layer; before any is elsewhere."""
        return self.layers if self.blocks is None else self.blocks.layers()


def find_network(module: LightningModule, num_stages: int, split: Sequence[str] = ()) -> Network:
    """The layers that stages are made of; all else of the task stays whole on every rank.

    Where the user says at which modules the network is split, see `split_network`. Else they are
    what the task's method ``layers()`` returns, whose composition is its ``forward``; else the
    elements of the nn.Sequential, or of the nn.ModuleList of blocks, with the most parameters, of
    those that are long enough; else the parts of the network between its modules.
    """
    if split:
        network = Network(*split_network(module, split))
    elif callable(getattr(module, "layers", None)) and not isinstance(module.layers, nn.Module):
        network = Network("self", module, find_layers(module) or {})
    else:
        found = [part for part in _sequences(module) if _size(part)]
        found = [part for part in found if len(opened([part])) >= num_stages] or found
        sequence = max(found, key=_size, default=None)
        blocks = find_blocks(module, num_stages)
        if blocks is not None and (
            sequence is None or (blocks.have_parts and blocks.size > _size(sequence))
        ):
            network = Network(blocks.name, blocks.holder, blocks.blocks, blocks)
        elif sequence is not None:
            name = next(name for name, part in module.named_modules() if part is sequence)
            network = Network(name, sequence, _named(name, sequence))
        elif parts := split_at_children(module):
            network = Network(*parts)
        else:
            raise UserError(
                f"strategy=pipeline: {type(module).__name__} has no sequence of layers: hold them "
                "in an nn.Sequential, or blocks of one class in an nn.ModuleList, name modules to "
                "split it at in strategy.split, or add a method layers() that returns in order the "
                "layers that self(inputs) calls; change it, or use strategy=fsdp"
            )
    _check_parameters(module, network)
    return network


def _sequences(module: nn.Module) -> Iterator[nn.Sequential]:
    """The outermost nn.Sequential of each branch."""
    for child in module.children():
        if isinstance(child, nn.Sequential) and type(child).forward is nn.Sequential.forward:
            yield child
        else:
            yield from _sequences(child)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _named(path: str, sequence: nn.Sequential) -> dict[str, nn.Module]:
    holder = nn.Module()
    holder.layers = sequence
    found = find_layers(holder) or {}
    return {name.replace("layers", path, 1): layer for name, layer in found.items()}


def _check_parameters(module: LightningModule, network: Network) -> None:
    name = type(module).__name__
    known = set(module.parameters())
    held = {id(part) for layer in network.layers.values() for part in layer.modules()}
    for path, layer in network.layers.items():
        if not known.issuperset(layer.parameters()):
            raise UserError(
                f"strategy=pipeline: the layer {path} of {name} has parameters that are none of "
                f"{name}'s; make it once, in __init__, as an attribute of {name}"
            )
    inside = {id(p): path for path, layer in network.layers.items() for p in layer.parameters()}
    if network.owner is module and network.blocks is None:
        for path, parameter in module.named_parameters():
            if id(parameter) not in inside:
                raise UserError(
                    f"strategy=pipeline: the parameter {path} of {name} is in none of its layers; "
                    "put it into the layer that uses it, or use strategy=fsdp"
                )
    direct = {
        id(attrgetter(target)(layer))
        for layer in network.layers.values()
        for target in direct_tensors(layer)
    }
    for path, part in module.named_modules():
        if id(part) in held or part is module:
            continue
        for own, parameter in part.named_parameters(path, recurse=False):
            if id(parameter) in inside and id(parameter) not in direct:
                raise UserError(
                    f"strategy=pipeline: {own} is also a parameter of the layer "
                    f"{inside[id(parameter)]}, which one rank holds; untie them, or use "
                    "strategy=fsdp"
                )
