"""What the arguments of a class or a function may be: the annotations of its signature."""

import ast
from functools import cache
from importlib import import_module
from typing import Any

from .source import Definition, Source, find, method, read

BUILTIN = {"bool": bool, "float": float, "int": int, "list": list, "str": str}
# What annotations of limits are made of.
READY = (
    "collections.abc",
    "math",
    "onecurve.checkpoint.existing",
    "onecurve.limits",
    "typing",
    "typing_extensions",
)


@cache
def arguments(target: str) -> dict[str, Any]:
    """The types of the arguments by name, without importing what they belong to.

    Args:
        target: Dotted name of a class or a function, as `_target_` has it.

    Returns:
        Those types that are made of what `onecurve.limits` and `typing` define. A class that takes
        ``**options`` has those of its bases, too; ``**options: Unpack[SomeTypedDict]`` those of the
        dictionary.
    """
    found = find(target)
    return _arguments(*found) if found else {}


@cache
def keywords(target: str) -> list[str] | None:
    """Names of all arguments of a class or a function; None if it takes others, or is not read.

    A class that only hands its ``**options`` to ``super().__init__`` has those of its base, too.
    """
    found = find(target)
    known = _keywords(*found) if found else None
    return None if known is None else list(known)


@cache
def required(target: str) -> set[str]:
    """Names of the arguments that have no default, where all arguments are known."""
    found = find(target)
    known = (_keywords(*found) if found else None) or {}
    return {name for name, has_default in known.items() if not has_default}


@cache
def named(target: str) -> list[str]:
    """Names of the arguments that a class or a function itself names, whatever else it takes."""
    found = find(target)
    function = _function(*found)[2] if found else None
    given = [*function.args.args, *function.args.kwonlyargs] if function else []
    return [name.arg for name in given if name.arg != "self"]


@cache
def sources(target: str) -> tuple[Source, ...]:
    """The file of a class or a function, and those of the classes that it is derived from."""
    found = [find(target)]
    for each in found:
        if each is not None:
            found += each[0].bases(each[1])
    return tuple(dict.fromkeys(each[0] for each in found if each is not None))


def _function(
    source: Source, node: Definition
) -> tuple[Source, Definition, ast.FunctionDef | None]:
    """What a call of it calls, for a class its own `__init__` or a base's, and whose it is."""
    if isinstance(node, ast.FunctionDef):
        return source, node, node
    if node.decorator_list:
        return source, node, None
    if own := method(node, "__init__"):
        return source, node, own
    inherited = source.bases(node)
    alone = len(inherited) == len(node.bases) == 1
    return _function(*inherited[0]) if alone else (source, node, None)


def _keywords(source: Source, node: Definition) -> dict[str, bool] | None:
    """By name: whether it has a default."""
    source, node, function = _function(source, node)
    if function is None:
        return None
    given = function.args
    plain = [name.arg for name in (*given.posonlyargs, *given.args)]
    own = {name: place >= len(plain) - len(given.defaults) for place, name in enumerate(plain)}
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    own |= {name.arg: default is not None for name, default in pairs}
    own.pop("self", None)
    if given.kwarg is None:
        return own
    passed, bases = _passed_on(function, given.kwarg.arg), source.bases(node)
    if passed is None or len(bases) != 1 or not isinstance(node, ast.ClassDef) or node.bases[1:]:
        return None
    further = _keywords(*bases[0])
    if further is None or any(isinstance(each, ast.Starred) for each in passed.args):
        return None
    said = {keyword.arg for keyword in passed.keywords} | set(list(further)[: len(passed.args)])
    return {name: default for name, default in further.items() if name not in said} | own


def _passed_on(function: ast.FunctionDef, options: str) -> ast.Call | None:
    """The call of `super().__init__` that alone gets the other arguments, if it is so."""
    nodes = list(ast.walk(function))
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "super().__init__"
        for keyword in node.keywords
        if keyword.arg is None and ast.unparse(keyword.value) == options
    ]
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == options]
    return calls[0] if len(calls) == len(uses) == 1 else None


def _arguments(source: Source, node: Definition) -> dict[str, Any]:
    function = method(node, "__init__") if isinstance(node, ast.ClassDef) else node
    types: dict[str, Any] = {}
    if isinstance(function, ast.FunctionDef):
        named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        types = _evaluated(source, {name.arg: name.annotation for name in named})
        others = function.args.kwarg
        if others is None:
            return types
        options = others.annotation
        if isinstance(options, ast.Subscript) and ast.unparse(options.value).endswith("Unpack"):
            found = source.find(ast.unparse(options.slice))
            types = (_arguments(*found) if found else {}) | types
    elif isinstance(node, ast.ClassDef):
        # The fields of a dataclass, or of a TypedDict.
        fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
        types = _evaluated(source, {ast.unparse(each.target): each.annotation for each in fields})
    for base in reversed(source.bases(node)):
        types = _arguments(*base) | types
    return types


def _evaluated(source: Source, annotations: dict[str, ast.expr | None]) -> dict[str, Any]:
    types = {}
    for name, annotation in annotations.items():
        try:
            types[name] = _value(source, annotation)
        except NameError:
            continue
    return types


def _value(source: Source, expression: ast.expr | None) -> Any:
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        expression = ast.parse(expression.value, mode="eval").body
    if expression is None:
        raise NameError
    code = compile(ast.Expression(expression), str(source.file), "eval")
    return eval(code, {"__builtins__": {}}, _Names(source))


class _Names(dict[str, Any]):
    """What names mean in an annotation of a file."""

    def __init__(self, source: Source) -> None:
        super().__init__(BUILTIN)
        self.source = source

    def __missing__(self, name: str) -> Any:
        if name in self.source.assigned:
            return _value(self.source, self.source.assigned[name])
        dotted = self.source.imported.get(name, "")
        if dotted in READY:
            return import_module(dotted)
        module, _, attribute = dotted.rpartition(".")
        if module in READY:
            return getattr(import_module(module), attribute)
        other = read(module) if module else None
        if other is None or attribute not in other.assigned:
            raise NameError(name)
        return _value(other, other.assigned[attribute])
