"""The network of a task that is divided into stages, what it is called by, and its layers."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule
from torch import nn

from ...errors import UserError
from ..layers import CONTAINERS, find_layers, opened
from .blocks import Blocks
from .split import split_at_children


class Network(NamedTuple):
    """Layers whose composition is the `forward` of a module, or blocks that its code calls."""

    name: str
    """The name of the owner in the task."""
    owner: nn.Module
    """The module whose `forward` the pipeline computes: an nn.Sequential, or the task."""
    layers: dict[str, nn.Module]
    """The layers in order, by their dotted names in the task."""
    blocks: Blocks | None = None
    """Set if code of the owner calls the layers one by one."""

    def measured(self) -> tuple[dict[str, nn.Module], Callable[[], tuple[Any, ...]]]:
        """What is called with tensors for each layer, and what shapes depend on beside them."""
        if self.blocks is None:
            return self.layers, lambda: (self.owner.training,)
        blocks = self.blocks
        return blocks.layers(), lambda: blocks.shapes

    @property
    def called(self) -> str:
        """What a step is to call."""
        if self.blocks is not None and not self.name:
            return f"the blocks in {self.blocks.path} one after the other"
        return self.name or "self(inputs)"


def find_networks(module: LightningModule, num_stages: int) -> list[Network]:
    """The layers that stages are made of; all else of the task is in full on every rank.

    They are what the task's method ``layers()`` returns, whose composition is its ``forward``; else
    the elements of the nn.Sequential, or of the nn.ModuleList of blocks, with the most parameters,
    of those that are long enough; else the parts of the network between its modules. Beside blocks
    of an encoder those of its decoder make stages as well, and the other way round.
    """
    if callable(getattr(module, "layers", None)) and not isinstance(module.layers, nn.Module):
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
            path, layers = parts
            network = Network(path or "self", module.get_submodule(path), layers)
        else:
            raise UserError(
                f"strategy=pipeline: {type(module).__name__} has no sequence of layers: hold them "
                "in an nn.Sequential, or blocks of one class in an nn.ModuleList, or add a method "
                "layers() that returns in order the layers that self(inputs) calls, or use "
                "strategy=fsdp"
            )
    networks = [network]
    if network.blocks and (other := find_other_stack(module, network.blocks, num_stages)):
        networks.append(Network(other.name, other.holder, other.blocks, other))
    for each in networks:
        _check_parameters(module, each)
    return networks


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
    name, layers = type(module).__name__, network.layers.values()
    known = set(module.parameters())
    for path, layer in network.layers.items():
        if not known.issuperset(layer.parameters()):
            raise UserError(
                f"strategy=pipeline: the layer {path} of {name} has parameters that are none of "
                f"{name}'s; make it once, in __init__, as an attribute of {name}"
            )
    inside = {id(p): path for path, layer in network.layers.items() for p in layer.parameters()}
    held = {id(part) for layer in layers for part in layer.modules()} | {id(module)}
    for around, part in module.named_modules():
        for path, parameter in part.named_parameters(around, recurse=False):
            layer_of = inside.get(id(parameter))
            if layer_of is None and network.owner is module and network.blocks is None:
                raise UserError(
                    f"strategy=pipeline: the parameter {path} of {name} is in none of its layers; "
                    "put it into the layer that uses it, or use strategy=fsdp"
                )
            if layer_of is not None and id(part) not in held:
                raise UserError(
                    f"strategy=pipeline: {path} is also a parameter of the layer {layer_of}, which "
                    "one rank holds; untie them, or use strategy=fsdp"
                )


def find_blocks(
    task: LightningModule, num_stages: int, within: nn.Module | None = None
) -> Blocks | None:
    """The nn.ModuleList or nn.ModuleDict with the most parameters that holds blocks of one class.

    A list of single layers comes last: the code around it usually calls functions between them.
    """
    found: list[Any] = [
        part
        for part in (within or task).modules()
        if isinstance(part, CONTAINERS) and len([*part.children()]) > 1 and _are_alike(part)
    ]
    found = [each for each in found if len([*each.children()]) >= num_stages] or found
    blocks = [Blocks(task, container) for container in found]
    return max(blocks, key=lambda each: (each.have_parts, each.size), default=None)


def find_other_stack(task: LightningModule, blocks: Blocks, num_stages: int) -> Blocks | None:
    """The blocks of the encoder, given those of the decoder, or the other way round.

    This holds for networks of a class that is known to have both, and to call all blocks in order.
    """
    for part in task.modules():
        has_both = getattr(getattr(part, "config", None), "is_encoder_decoder", False)
        if not has_both and not isinstance(part, nn.Transformer):
            continue
        stacks = [getattr(part, name, None) for name in ("encoder", "decoder")]
        others = [
            each for each in stacks if each is not None and blocks.holder not in each.modules()
        ]
        found = find_blocks(task, num_stages, others[0]) if len(others) == 1 else None
        if found is not None and found.have_parts and len(found.blocks) >= num_stages:
            return found
    return None


def _are_alike(container: nn.Module) -> bool:
    blocks = [*container.children()]
    has_some = all(next(block.parameters(), None) is not None for block in blocks)
    is_called = not isinstance(blocks[0], CONTAINERS)
    return len({type(block) for block in blocks}) == 1 and has_some and is_called
