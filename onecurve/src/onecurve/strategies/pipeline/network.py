"""The network of a task that is divided into stages, what it is called by, and its layers.

One that is no sequence of layers is split before each of its modules, as torch.fx traces it:

    net.forward   x ── conv1 ──┬── conv2 ── up ──┬── head ──> y
                               └─────────────────┘
    layers        [conv1]  ->  [conv2]  ->  [up .. head]
    what passes   x        a           (b, a)           y

The code between two modules goes with the first of them. What a later layer needs, such as a skip
connection, travels with the micro-batches through the layers between. Networks of this kind are
Inception v3 (torchvision, timm), those of pytorch/examples (mnist, vae, word_language_model,
super_resolution, fast_neural_style) and of PyTorch's CIFAR-10 tutorial.

torch.distributed.pipelining's own tracer, torch.export, is not used: its graph is that of one mode
and one batch size, while a fit trains and validates, and its last batch may be smaller.
https://docs.pytorch.org/docs/stable/fx.html
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from inspect import Parameter, signature
from operator import attrgetter
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule
from torch import fx, nn

from ...errors import UserError
from ..layers import CONTAINERS, find_layers, opened
from .blocks import Blocks
from .shapes import BY_POSITION


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
        sequences = [part for part in _sequences(module) if _size(part)]
        sequences = [part for part in sequences if len(opened([part])) >= num_stages] or sequences
        sequence = max(sequences, key=_size, default=None)
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
    layers = find_layers(holder) or {}
    return {name.replace("layers", path, 1): layer for name, layer in layers.items()}


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
    in_layers = {id(part) for layer in layers for part in layer.modules()} | {id(module)}
    for around, part in module.named_modules():
        for path, parameter in part.named_parameters(around, recurse=False):
            layer_of = inside.get(id(parameter))
            if layer_of is None and network.owner is module and network.blocks is None:
                raise UserError(
                    f"strategy=pipeline: the parameter {path} of {name} is in none of its layers; "
                    "put it into the layer that uses it, or use strategy=fsdp"
                )
            if layer_of is not None and id(part) not in in_layers:
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
    for module in task.modules():
        has_both = getattr(getattr(module, "config", None), "is_encoder_decoder", False)
        if not has_both and not isinstance(module, nn.Transformer):
            continue
        stacks = [getattr(module, name, None) for name in ("encoder", "decoder")]
        others = [
            each for each in stacks if each is not None and blocks.holder not in each.modules()
        ]
        other = find_blocks(task, num_stages, others[0]) if len(others) == 1 else None
        if other is not None and other.have_parts and len(other.blocks) >= num_stages:
            return other
    return None


def _are_alike(container: nn.Module) -> bool:
    blocks = [*container.children()]
    has_some = all(next(block.parameters(), None) is not None for block in blocks)
    is_called = not isinstance(blocks[0], CONTAINERS)
    return len({type(block) for block in blocks}) == 1 and has_some and is_called


# What is made of a shape is computed again where it is needed: only tensors travel.
OF_A_SHAPE = {"shape", "ndim", "dtype", "device"}
ARITHMETIC = {
    *(operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv),
    *(operator.truediv, operator.mod, operator.neg, min, max, int, len, tuple),
}


def split_at_children(task: LightningModule) -> tuple[str, dict[str, nn.Module]] | None:
    """Split the innermost network that has all parameters before each of its modules.

    Returns:
        The network's name in the task, and its layers, named after the modules that they begin
        with. None if its code cannot be traced, does something else in evaluation, uses parameters
        or buffers itself, or returns something other than tensors.
    """
    path, names = "", [""]
    while len(names) == 1:
        path = f"{path}.{names[0]}".strip(".")
        named = task.get_submodule(path).named_children()
        names = [name for name, child in named if [*child.parameters()]]
    owner = task.get_submodule(path)
    if not names or isinstance(owner, CONTAINERS):
        return None
    try:
        pieces, evaluated = (_pieces(owner, names, training) for training in (True, False))
    except Exception:  # whatever the code does with what has no value
        return None
    if {name: piece.code for name, piece in pieces.items()} != {
        name: piece.code for name, piece in evaluated.items()
    }:
        return None
    return path, {f"{path}.{name}".lstrip("."): piece for name, piece in pieces.items()}


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _traced(owner: nn.Module, training: bool) -> tuple[list[fx.Node], list[fx.Node]]:
    """The nodes of a graph, and those of its inputs."""
    parameters = signature(owner.forward).parameters.values()
    usual = {each.name: each.default for each in parameters if each.default is not Parameter.empty}
    modes = {module: module.training for module in owner.modules()}
    owner.train(training)
    try:
        graph = _Tracer().trace(owner, concrete_args=usual)
    finally:
        for module, mode in modes.items():
            module.training = mode
    # What only asserts something, as torch.fx does of an optional argument, is dropped.
    asserted: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        is_assert = "_assert" in getattr(node.target, "__name__", "")
        if not node.users and (is_assert or node in asserted) and node.op != "placeholder":
            asserted.update(node.all_input_nodes)
            graph.erase_node(node)
    if any(node.op == "get_attr" for node in graph.nodes):
        raise TypeError("uses a parameter or a buffer outside of modules")
    if any(each.kind not in BY_POSITION for each in parameters if each.name not in usual):
        raise TypeError("takes more than tensors by position")
    nodes = [node for node in graph.nodes if node.op != "placeholder"]
    inputs = zip(parameters, graph.find_nodes(op="placeholder"), strict=True)
    return nodes, [node for each, node in inputs if each.name not in usual]


def _pieces(owner: nn.Module, names: list[str], training: bool) -> dict[str, fx.GraphModule]:
    """A layer from the first call of each module to that of the next one."""
    nodes, inputs = _traced(owner, training)
    output = nodes.pop().args[0]
    returned: Any = list(output) if isinstance(output, list | tuple) else [output]
    if not all(isinstance(each, fx.Node) for each in returned):
        raise TypeError("returns something other than tensors")
    calls = [str(node.target) if node.op == "call_module" else "" for node in nodes]
    starts = {calls.index(name): name for name in names}
    # What precedes the first module goes with it.
    order = sorted(starts)
    bounds = [0, *order[1:], len(nodes)]
    passing = [inputs]
    for start in bounds[1:-1]:
        later = [node for node in nodes[start:] if not _is_copied(node)]
        needed = _tensors(later).union(returned) & {*inputs, *nodes[:start]}
        passing.append([node for node in (*inputs, *nodes) if node in needed])
    passing.append(returned)
    return {
        starts[at]: _piece(owner, nodes[begin:end], *passing[number : number + 2])
        for number, (at, begin, end) in enumerate(zip(order, bounds, bounds[1:], strict=False))
    }


def _piece(
    owner: nn.Module, nodes: list[fx.Node], enters: list[fx.Node], leaves: list[fx.Node]
) -> fx.GraphModule:
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in enters}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            for each in node.all_input_nodes:
                copied(each)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        return copies[node]

    for node in nodes:
        if not _is_copied(node):
            copied(node)
    out = tuple(copied(node) for node in leaves)
    graph.output(out[0] if len(out) == 1 else out)
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    return fx.GraphModule({name: attrgetter(name)(owner) for name in called}, graph)


def _is_copied(node: fx.Node) -> bool:
    """Whether a node is computed again where it is used: what is made of a shape."""
    if node.op == "call_method":
        return node.target in ("size", "dim")
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in OF_A_SHAPE
    inputs = node.all_input_nodes
    return node.target in ARITHMETIC and bool(inputs) and all(map(_is_copied, inputs))


def _tensors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The tensors that nodes are computed from."""
    inputs = {each for node in nodes for each in node.all_input_nodes}
    copied = {each for each in inputs if _is_copied(each)}
    return (inputs - copied) | (_tensors(copied) if copied else set())
