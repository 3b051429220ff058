"""Models of a project's own classes and functions, from their constructors, when they are built.

What is read of an annotation: `int`, `str | None`, `list[float]`, `Literal["pad", "stretch"]`,
`Annotated[int, Field(ge=1)]`. Any other type is left to the class itself.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Optional, Self, Union, get_args, get_origin

from pydantic import Field, create_model

from ...config_model import Checked, Config
from ...errors import NOT_OF_THE_PROJECT
from .interpolation import OF_A_TASK

PLAIN = (bool, int, float, str, NoneType)
COLLECTIONS = (list, dict, Sequence, Mapping)


class Constructor(Config):
    """The arguments of a class of the project."""

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> Checked[Self]:
        """Validate values, but not those that another class is built for."""
        checked = super().checked(values)
        problems = [each for each in checked.problems if not _is_built(values.get(str(each.name)))]
        return checked._replace(problems=problems)


def model_of_constructor(target: Any) -> type[Config] | None:
    """The model of a class or function of the project; None for another, or if it is unknown.

    One that passes ``**options`` on has the types of its bases' arguments, and needs none of them.
    """
    fields: dict[str, Any] = {}
    is_open = False
    try:
        for function in _functions(target):
            hints = inspect.get_annotations(function, eval_str=True)
            for name, argument in inspect.signature(function).parameters.items():
                if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
                    is_open = True
                elif name != "self" and name not in fields:
                    hint = _known(hints.get(name, Any))
                    hint = Optional[hint] if argument.default is None else hint  # noqa: UP045
                    fields[name] = (hint, argument.default)
    except (NameError, SyntaxError, TypeError, ValueError):  # such as a type in quotes
        return None
    if not fields:
        return None
    # Under names that pydantic does not use itself.
    known: dict[str, Any] = {
        f"argument_{number}": (hint, Field(_default(name, default, is_open), alias=name))
        for number, (name, (hint, default)) in enumerate(fields.items())
    }
    model: type[Config] = create_model(target.__name__, __base__=Constructor, **known)
    model.model_config["extra"] = "allow" if is_open else "forbid"
    model.__doc__ = inspect.getdoc(target)
    return model


def _functions(target: Any) -> Iterator[Callable[..., Any]]:
    """The constructor of a class, and those of bases to which it passes what it does not know."""
    functions = [target]
    if inspect.isclass(target):
        functions = [vars(each)["__init__"] for each in target.__mro__ if "__init__" in vars(each)]
    for function in functions:
        if not inspect.isfunction(function):
            return
        if function.__code__.co_filename.startswith(NOT_OF_THE_PROJECT):
            return
        yield function
        if inspect.getfullargspec(function).varkw is None:
            return


def _default(name: str, default: Any, is_open: bool) -> Any:
    if default is not inspect.Parameter.empty:
        default = list(default) if isinstance(default, tuple) else default
        return default if isinstance(default, (*PLAIN, list, dict)) else None
    return None if is_open or name in OF_A_TASK.values() else ...


def _known(hint: Any) -> Any:
    """A type with Any for what a configuration does not hold as it is."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[_known(hint.__origin__), *hint.__metadata__]
    if hint in (*PLAIN, *COLLECTIONS) or origin is Literal:
        return hint
    if origin in (Union, UnionType):
        return Union[tuple(map(_known, parts))]  # noqa: UP007
    if origin in COLLECTIONS:
        return origin[tuple(map(_known, parts))]
    return Any


def _is_built(value: Any) -> bool:
    """Whether a value is built by Hydra, or has entries that are."""
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_is_built, value.values()))
    return isinstance(value, list) and any(map(_is_built, value))
