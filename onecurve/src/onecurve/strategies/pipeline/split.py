"""Splits a network that is no sequence of layers before each of its modules, as torch.fx traces it.

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
from collections.abc import Iterable
from inspect import Parameter, signature
from operator import attrgetter
from typing import Any

from lightning.pytorch import LightningModule
from torch import fx, nn

from ..layers import CONTAINERS
from .shapes import BY_POSITION

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
        names = [name for name, part in named if [*part.parameters()]]
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
    modes = {part: part.training for part in owner.modules()}
    owner.train(training)
    try:
        graph = _Tracer().trace(owner, concrete_args=usual)
    finally:
        for part, mode in modes.items():
            part.training = mode
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
