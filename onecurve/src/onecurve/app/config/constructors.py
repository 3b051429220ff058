"""Models of a project's own classes and functions, from their constructors.

Annotations are read in the source: `int`, `str | None`, `list[float]`, `Literal["pad", "stretch"]`,
`Annotated[int, Field(ge=1)]`, and names that a file gives to such types. Any other type is left to
the class itself, which validates its arguments when it is built.
"""

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Optional, Self, Union

from pydantic import Field, create_model

from ...config_model import Checked, Config
from .source import Argument, definition_in, is_of_project, signature_of

TYPES: dict[str, Any] = {
    "Annotated": Annotated,
    "Any": Any,
    "Field": Field,
    "Literal": Literal,
    "Mapping": Mapping,
    "Optional": Optional,
    "Sequence": Sequence,
    "Union": Union,
    **{kind.__name__: kind for kind in (bool, int, float, str, list, dict)},
}
# What a run passes to a task, or calls a partial with.
BY_THE_RUN = ("network", "optimizer", "scheduler")


class Constructor(Config):
    """The arguments of a class of the project."""

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> Checked[Self]:
        """Validate values, but not those that another class is built for."""
        found = super().checked(given)
        problems = [each for each in found.problems if not _is_built(given.get(str(each.name)))]
        return found._replace(problems=problems)


@cache
def model_of_constructor(target: str) -> type[Config] | None:
    """The model of a class or function of the project; None for another, or if it is unknown."""
    module, _, name = target.rpartition(".")
    signature = signature_of(target) if is_of_project(module) else None
    if signature is None:
        return None
    fields: dict[str, Any] = {}
    for number, (argument, written) in enumerate(signature.arguments.items()):
        is_needed = written.default is None and argument not in BY_THE_RUN
        default = ... if is_needed else _value(written.default)
        # Under a name that pydantic does not use itself.
        fields[f"argument_{number}"] = (_type(written), Field(default, alias=argument))
    model: type[Config] = create_model(name, __base__=Constructor, **fields)
    model.model_config["extra"] = "allow" if signature.is_open else "forbid"
    model.__doc__ = signature.about
    return model


def _type(argument: Argument) -> Any:
    found = _evaluated(argument.annotation, argument.module)
    is_null = isinstance(argument.default, ast.Constant) and argument.default.value is None
    return Optional[found] if is_null else found  # noqa: UP045


def _evaluated(annotation: ast.expr | None, module: str) -> Any:
    """The type of an annotation; Any if it has names that stand for something else."""
    if annotation is None:
        return Any
    names = {part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)}
    known: dict[str, Any] = {}
    for name in names:
        if name in TYPES:
            known[name] = TYPES[name]
        elif (meant := _named(module, name)) is not None:
            known[name] = meant
        else:
            return Any
    try:
        code = compile(ast.Expression(annotation), "<annotation>", "eval")
        return eval(code, {"__builtins__": {}, **known})
    except Exception:  # such as a type in quotes
        return Any


@cache
def _named(module: str, name: str) -> Any:
    """The type that a module gives a name; None if it does not."""
    where, part = definition_in(module, name, is_of_project) or (module, None)
    meant = _evaluated(part.value, where) if isinstance(part, ast.Assign) else Any
    return None if meant is Any else meant


def _value(default: ast.expr | None) -> Any:
    try:
        return None if default is None else ast.literal_eval(default)
    except ValueError:
        return None


def _is_built(value: Any) -> bool:
    """Whether a value is built by Hydra, or has entries that are."""
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_is_built, value.values()))
    return isinstance(value, list) and any(map(_is_built, value))
