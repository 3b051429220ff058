"""The network of a task that is divided into stages, what it is called by, and its layers.

A network that is no sequence of layers is split before modules: those that the user names in
``strategy.split``, or its own children. torch.fx traces the code that calls these modules, and no
other: a module that holds none of them is called as it stands, whatever its code does. Each part of
the graph between two of them becomes a layer of the pipeline. What a later part needs, such as the
skip connections of a U-Net, travels with the micro-batches through the parts between.

    net.forward   x ── down1 ──┬── down2 ── up1 ──┬── head ──> y
                               └──────────────────┘
    layers        [down1]  ->  [down2]  ->  [up1 .. head]
    what passes   x        a           (b, a)               y

torch.distributed.pipelining's own tracer, torch.export, is not used: its graph is that of one mode
and one batch size, while a fit trains and validates, and its last batch may be smaller.
https://docs.pytorch.org/docs/stable/fx.html
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import Parameter, signature
from itertools import takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule
from torch import fx, nn

from ...errors import UserError, in_short
from ..layers import CONTAINERS, find_layers, opened
from .blocks import Blocks, find_blocks, find_other_stack
from .shapes import BY_POSITION

# What is made of a shape is computed again where it is needed: only tensors travel.
OF_A_SHAPE = {"shape", "ndim", "dtype", "device"}
ARITHMETIC = {
    *(operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv),
    *(operator.truediv, operator.mod, operator.neg, min, max, int, len, tuple),
}


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

    @property
    def called(self) -> str:
        """What a step is to call."""
        if self.blocks is not None and not self.name:
            return f"the blocks in {self.blocks.path} one after the other"
        return self.name or "self(inputs)"


def find_networks(
    module: LightningModule, num_stages: int, split: Sequence[str] = ()
) -> list[Network]:
    """The layers that stages are made of; all else of the task is in full on every rank.

    Where the user says at which modules the network is split, see `split_network`. Else they are
    what the task's method ``layers()`` returns, whose composition is its ``forward``; else the
    elements of the nn.Sequential, or of the nn.ModuleList of blocks, with the most parameters, of
    those that are long enough; else the parts of the network between its modules. Beside blocks
    of an encoder those of its decoder make stages as well, and the other way round.
    """
    if split:
        network = split_network(module, split)
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
        elif parts := _split_at_children(module):
            network = parts
        else:
            raise UserError(
                f"strategy=pipeline: {type(module).__name__} has no sequence of layers: hold them "
                "in an nn.Sequential, or blocks of one class in an nn.ModuleList, name modules to "
                "split it at in strategy.split, or add a method layers() that returns in order the "
                "layers that self(inputs) calls; change it, or use strategy=fsdp"
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
    graphs = [graph for layer in layers for graph in graphs_of(layer)]
    direct = {id(attrgetter(at)(graph)) for graph in graphs for at in _direct_tensors(graph)}
    for around, part in module.named_modules():
        for path, parameter in part.named_parameters(around, recurse=False):
            layer_of = inside.get(id(parameter))
            if layer_of is None and network.owner is module and network.blocks is None:
                raise UserError(
                    f"strategy=pipeline: the parameter {path} of {name} is in none of its layers; "
                    "put it into the layer that uses it, or use strategy=fsdp"
                )
            if layer_of is not None and id(part) not in held and id(parameter) not in direct:
                raise UserError(
                    f"strategy=pipeline: {path} is also a parameter of the layer {layer_of}, which "
                    "one rank holds; untie them, or use strategy=fsdp"
                )


def split_network(task: LightningModule, split: Sequence[str]) -> Network:
    """The layers of the smallest network around some modules of the task, by their dotted names.

    A layer begins with each of them, and has its name.
    """
    key = f"strategy.split=[{','.join(split)}]"
    names = [each for each, _ in task.named_modules(remove_duplicate=False) if each]
    if unknown := [name for name in split if name not in names]:
        near = get_close_matches(unknown[0], names, 1) or names[-1:]
        raise UserError(
            f"{key}: {type(task).__name__} has no module {unknown[0]}, such as {near[0]}"
        )
    around = zip(*(name.split(".")[:-1] for name in split), strict=False)
    path = ".".join(parts[0] for parts in takewhile(lambda each: len(set(each)) == 1, around))
    owner, called = task.get_submodule(path), f"{path}.forward".lstrip(".")
    begins = {task.get_submodule(name): name for name in split}

    def traced_in(training: bool) -> dict[str, fx.GraphModule]:
        tracer = _Tracer(begins)
        with in_mode(owner, training):
            nodes, enters = _traced(owner, tracer, key)
        if missing := [name for name in split if name not in tracer.cuts]:
            mode = "" if training else " in evaluation"
            raise UserError(
                f"{key}: {called} does not call {missing[0]}{mode}; name modules that it calls, or "
                "use strategy=fsdp"
            )
        first = next(place for place, node in enumerate(nodes) if _is_work(node))
        # What precedes the first of them, too, unless nothing does.
        begin = {first: path or "forward"} | {place: name for name, place in tracer.cuts.items()}
        starts = sorted(begin)
        pieces = _pieces(owner, nodes, enters, starts, called)
        return {begin[place]: piece for place, piece in zip(starts, pieces, strict=True)}

    trained, evaluated = traced_in(True), traced_in(False)
    if list(trained) != list(evaluated):
        raise UserError(
            f"{key}: {called} calls them in another order in evaluation; change it, or use "
            "strategy=fsdp"
        )
    layers: dict[str, nn.Module] = {
        name: graph if graph.code == evaluated[name].code else ByMode(owner, graph, evaluated[name])
        for name, graph in trained.items()
    }
    return Network(path or "self", owner, layers)


def _split_at_children(task: LightningModule) -> Network | None:
    """Split before each part of the innermost network that has all parameters, if possible."""
    path, parts = "", [""]
    while len(parts) == 1:
        path = parts[0]
        named = task.get_submodule(path).named_children()
        children = [name for name, part in named if [*part.parameters()]]
        parts = [f"{path}.{name}".lstrip(".") for name in children]
    if not parts or isinstance(task.get_submodule(path), CONTAINERS):
        return None
    try:
        return split_network(task, parts)
    except UserError:
        return None


def _direct_tensors(piece: fx.GraphModule) -> list[str]:
    """Parameters and buffers that the split code uses itself, by their names in the network."""
    return [str(node.target) for node in piece.graph.nodes if node.op == "get_attr"]


def share_direct_tensors(network: nn.Module, layers: Iterable[nn.Module]) -> None:
    """Let a network and its traced layers hold the same parameters and buffers again.

    Those of the layers may have been sharded since, and buffers of the network moved.
    """
    for piece in (graph for layer in layers for graph in graphs_of(layer)):
        for target in _direct_tensors(piece):
            path, _, name = target.rpartition(".")
            whole, part = network.get_submodule(path), piece.get_submodule(path)
            source, other = (
                (part, whole) if isinstance(getattr(part, name), nn.Parameter) else (whole, part)
            )
            setattr(other, name, getattr(source, name))


class ByMode(nn.Module):
    """A layer with two graphs over the same modules, one for training and one for evaluation.

    In a graph `self.training` is a constant, as in ``F.dropout(x, training=self.training)``. The
    mode of the network, which is not a part of the layer, decides.
    """

    def __init__(
        self, network: nn.Module, trained: fx.GraphModule, evaluated: fx.GraphModule
    ) -> None:
        super().__init__()
        self.trained, self.evaluated = trained, evaluated
        # A function, which a copy of the layer shares.
        self._trains: Callable[[], bool] = lambda: network.training

    def forward(self, *inputs: Any) -> Any:
        return self.trained(*inputs) if self._trains() else self.evaluated(*inputs)


def graphs_of(layer: nn.Module) -> list[fx.GraphModule]:
    """The traced graphs of a layer; none if it is a module of the user."""
    parts = [layer.trained, layer.evaluated] if isinstance(layer, ByMode) else [layer]
    return [part for part in parts if isinstance(part, fx.GraphModule)]


@contextmanager
def in_mode(network: nn.Module, training: bool) -> Iterator[None]:
    """Switch a network to a mode within the context, and restore that of each submodule."""
    before = [(part, part.training) for part in network.modules()]
    if network.training != training:
        network.train(training)
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode


class _Tracer(fx.Tracer):
    """Traces into the modules that hold one with which a layer begins.

    Attributes:
        cuts: The number of nodes before the first call of each of them, by name.
    """

    proxy_buffer_attributes = True

    def __init__(self, begins: dict[nn.Module, str]) -> None:
        super().__init__()
        self.begins = begins
        self.cuts: dict[str, int] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(part in self.begins for part in m.modules() if part is not m)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if name := self.begins.get(m):
            self.cuts.setdefault(name, len(self.graph.nodes))
        return super().call_module(m, forward, args, kwargs)


def _traced(owner: nn.Module, tracer: _Tracer, key: str) -> tuple[list[fx.Node], list[fx.Node]]:
    """The nodes of a graph, and those of its inputs."""
    parameters = signature(owner.forward).parameters.values()
    usual = {each.name: each.default for each in parameters if each.default is not Parameter.empty}
    try:
        nodes = list(tracer.trace(owner, concrete_args=usual).nodes)
    except Exception as error:  # whatever the code does with what has no value
        raise UserError(
            f"{key}: {type(owner).__name__}.forward cannot be traced ({in_short(error)}); let no "
            "branch there depend on values, or use strategy=fsdp"
        ) from error
    inputs = zip(parameters, (node for node in nodes if node.op == "placeholder"), strict=True)
    return nodes, [
        node for each, node in inputs if each.name not in usual and each.kind in BY_POSITION
    ]


def _pieces(
    owner: nn.Module, nodes: list[fx.Node], enters: list[fx.Node], starts: list[int], called: str
) -> list[fx.GraphModule]:
    """A module for each part of a graph."""
    output = nodes[-1].args[0]
    outputs = list(output) if isinstance(output, list | tuple) else [output]
    returned = [each for each in outputs if isinstance(each, fx.Node)]
    if len(returned) < len(outputs):
        raise UserError(
            f"strategy=pipeline: {called} returns something other than a tensor or a tuple "
            "of tensors; change it, or use strategy=fsdp"
        )
    places = {node: place for place, node in enumerate(nodes)}
    passing = [enters]
    for start in starts[1:]:
        later = [node for node in nodes[start:-1] if _is_work(node)]
        needed = {each for node in later for each in _tensors(node) if places[each] < start}
        needed |= {each for each in returned if places[each] < start}
        passing.append(sorted(needed, key=places.__getitem__))
    passing.append(returned)
    ends = [*starts[1:], len(nodes) - 1]
    return [
        _piece(owner, nodes[start:end], enters, leaves)
        for start, end, enters, leaves in zip(starts, ends, passing, passing[1:], strict=False)
    ]


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
        if _is_work(node):
            copied(node)
    out = tuple(copied(node) for node in leaves)
    graph.output(out[0] if len(out) == 1 else out)
    held = [str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")]
    return fx.GraphModule({name: attrgetter(name)(owner) for name in held}, graph)


def _is_work(node: fx.Node) -> bool:
    """Whether a node computes a tensor that passes through the network."""
    is_one = node.op not in ("placeholder", "output")
    return is_one and not _is_copied(node) and not _checks(node)


def _is_copied(node: fx.Node) -> bool:
    """Whether a node is copied to where it is used: what is made of a shape, or a parameter."""
    if node.op == "get_attr":
        return True
    if node.op == "call_method":
        return node.target in ("size", "dim")
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in OF_A_SHAPE
    inputs = node.all_input_nodes
    return node.target in ARITHMETIC and bool(inputs) and all(map(_is_copied, inputs))


def _tensors(node: fx.Node) -> set[fx.Node]:
    """The tensors that a node is computed from."""
    found = set()
    for each in node.all_input_nodes:
        found |= _tensors(each) if _is_copied(each) else {each}
    return found


def _checks(node: fx.Node) -> bool:
    """Whether a node only asserts something, as torch.fx does of an optional argument."""
    if node.op != "call_function":
        return False
    if "_assert" in getattr(node.target, "__name__", ""):
        return True
    return bool(node.users) and all(map(_checks, node.users))
