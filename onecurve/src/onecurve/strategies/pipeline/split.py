"""A network that is no sequence of layers, split before modules that the user names.

``strategy.split=[net.down2,net.up1]``: torch.fx traces the code that calls these modules, and no
other: a module that holds none of them is called as it stands, whatever its code does. Each part of
the graph between two names becomes a layer of the pipeline. What a later part needs, such as the
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
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from inspect import Parameter, signature
from operator import attrgetter
from typing import Any

from lightning.pytorch import LightningModule
from torch import fx, nn

from ...errors import UserError, in_short
from ..layers import CONTAINERS
from .stage import BY_POSITION

# What is made of a shape is computed again where it is needed: only tensors travel.
OF_A_SHAPE = {"shape", "ndim", "dtype", "device"}
ARITHMETIC = {
    *(operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv),
    *(operator.truediv, operator.mod, operator.neg, min, max, int, len, tuple),
}


def split_network(
    task: LightningModule, split: Sequence[str]
) -> tuple[str, nn.Module, dict[str, nn.Module]]:
    """The layers of the smallest network around some modules.

    Args:
        task: The task.
        split: Dotted names of modules in the task; a layer begins with each.

    Returns:
        The name and the module whose call passes through the layers, and the layers, each named by
        the module with which it begins.
    """
    begins = {_module(task, name, split): name for name in split}
    path = _around(split)
    owner = task.get_submodule(path)
    nodes, enters, cuts = _traced(owner, begins, split)
    for name in split:
        if name not in cuts:
            raise UserError(
                f"strategy.split={_shown(split)}: {_called(path)} does not call {name}; name "
                "modules that it calls, or use strategy=fsdp"
            )
    first = next(place for place, node in enumerate(nodes) if _is_work(node))
    begin = {place: name for name, place in cuts.items()}
    # What precedes the first of them, too, unless nothing does.
    begin = {first: path or "forward"} | begin
    starts = {begin[place]: place for place in sorted(begin)}
    pieces = _pieces(owner, nodes, enters, list(starts.values()), path)
    return path or "self", owner, dict(zip(starts, pieces, strict=True))


def split_at_children(
    task: LightningModule,
) -> tuple[str, nn.Module, dict[str, nn.Module]] | None:
    """As `split_network`, before each part of the innermost network that has all parameters.

    Returns:
        None if it has no two parts, or they cannot be split.
    """
    path, parts = "", _parts(task, "")
    while len(parts) == 1:
        path = parts[0]
        parts = _parts(task.get_submodule(path), path)
    if len(parts) < 2 or isinstance(task.get_submodule(path), CONTAINERS):
        return None
    try:
        return split_network(task, parts)
    except UserError:
        return None


def _parts(module: nn.Module, path: str) -> list[str]:
    children = module.named_children()
    return [f"{path}.{name}".lstrip(".") for name, part in children if [*part.parameters()]]


def _module(task: LightningModule, name: str, split: Sequence[str]) -> nn.Module:
    try:
        return task.get_submodule(name)
    except AttributeError:
        names = [each for each, _ in task.named_modules() if each]
        near = get_close_matches(name, names, 1) or names[-1:]
        raise UserError(
            f"strategy.split={_shown(split)}: {type(task).__name__} has no module {name}, such as "
            f"{near[0]}"
        ) from None


def _around(split: Sequence[str]) -> str:
    """The dotted name of the innermost module that holds all of these and is none of them."""
    around = [name.split(".")[:-1] for name in split]
    common = []
    for parts in zip(*around, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def direct_tensors(layer: nn.Module) -> list[str]:
    """Parameters and buffers that the split code uses itself, by their names in the network."""
    if not isinstance(layer, fx.GraphModule):
        return []
    return [str(node.target) for node in layer.graph.nodes if node.op == "get_attr"]


def share_direct_tensors(network: nn.Module, layers: Iterable[nn.Module]) -> None:
    """Let a network and its layers hold the same tensors again, of those that both name.

    Parameters are the layers', which may be sharded since; buffers are the network's, which may
    have moved.
    """
    for layer in layers:
        for target in direct_tensors(layer):
            path, _, name = target.rpartition(".")
            whole, part = network.get_submodule(path), layer.get_submodule(path)
            source, other = (
                (part, whole) if isinstance(getattr(part, name), nn.Parameter) else (whole, part)
            )
            setattr(other, name, getattr(source, name))


class _Tracer(fx.Tracer):
    """Goes into the modules that hold one of those where a layer begins.

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


def _traced(
    owner: nn.Module, begins: dict[nn.Module, str], split: Sequence[str]
) -> tuple[list[fx.Node], list[fx.Node], dict[str, int]]:
    """The nodes of a graph, those that stand for its inputs, and where layers begin."""
    tracer = _Tracer(begins)
    parameters = signature(owner.forward).parameters.values()
    usual = {each.name: each.default for each in parameters if each.default is not Parameter.empty}
    try:
        graph = tracer.trace(owner, concrete_args=usual)
    except Exception as error:  # whatever the code does with what has no value
        raise UserError(
            f"strategy.split={_shown(split)}: {type(owner).__name__}.forward cannot be traced "
            f"({in_short(error)}); let no branch there depend on values, or use strategy=fsdp"
        ) from error
    nodes = list(graph.nodes)
    inputs = zip(parameters, (node for node in nodes if node.op == "placeholder"), strict=True)
    enters = [node for each, node in inputs if each.name not in usual and each.kind in BY_POSITION]
    return nodes, enters, tracer.cuts


def _pieces(
    owner: nn.Module, nodes: list[fx.Node], enters: list[fx.Node], starts: list[int], path: str
) -> list[nn.Module]:
    """A module of each part of a graph."""
    output = nodes[-1].args[0]
    outputs = list(output) if isinstance(output, list | tuple) else [output]
    returned = [each for each in outputs if isinstance(each, fx.Node)]
    if len(returned) < len(outputs):
        raise UserError(
            f"strategy=pipeline: {_called(path)} returns something else than a tensor or a tuple "
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
) -> nn.Module:
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
    """Whether a node makes a tensor of what passes through the network."""
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
    """What a node is made of that has to be there."""
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


def _called(path: str) -> str:
    return f"{path}.forward" if path else "forward"


def _shown(split: Sequence[str]) -> str:
    return f"[{','.join(split)}]"
