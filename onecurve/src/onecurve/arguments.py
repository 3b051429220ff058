"""Constructors whose arguments are described once, by a pydantic model.

Such as::

    class FSDP(OneCurve, DDPStrategy):
        @configured_by(FSDPOptions, "strategy")
        def __init__(self, options: FSDPOptions) -> None: ...

``FSDP(wrap="layer")`` builds the model, whose fields are the constructor's arguments: for mypy and
editors, and in `inspect.signature` and `help`. A wrong value is an error of one line.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature
from numbers import Integral, Real
from os import PathLike, fspath
from textwrap import fill
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, dataclass_transform

from pydantic import Field

from .config_model import Config, fields
from .errors import UserError

P = ParamSpec("P")
Instance = TypeVar("Instance")


@dataclass_transform(kw_only_default=False, field_specifiers=(Field,))
class Arguments(Config):
    """The arguments of a constructor that takes them by position as well as by name."""


def configured_by(
    model: Callable[P, Any], key: str
) -> Callable[[Callable[[Instance, Any], None]], Callable[Concatenate[Instance, P], None]]:
    """Let a constructor that gets a model take the fields of this model as arguments.

    Args:
        model: The model; the arguments that another function takes, if its `extra` is "allow".
        key: Where a command has these arguments, such as "strategy": what error lines call them.
    """
    described = cast(type[Config], model)

    def decorate(
        init: Callable[[Instance, Any], None],
    ) -> Callable[Concatenate[Instance, P], None]:
        signature = signature_of(described)

        @wraps(init)
        def constructor(self: Any, /, *arguments: Any, **options: Any) -> None:
            try:
                bound = signature.bind(self, *arguments, **options).arguments
            except TypeError as error:
                raise TypeError(f"{type(self).__name__}: {error}") from None
            values = {name: plain(value) for name, value in [*bound.items()][1:] if name != "more"}
            checked = described.checked(values | bound.get("more", {}))
            for problem in checked.problems:
                raise UserError(problem.line(key))
            init(self, checked.model)

        constructor.__signature__ = signature  # type: ignore[attr-defined]
        constructor.__annotations__ = {
            name: each.annotation for name, each in signature.parameters.items() if name != "self"
        }
        constructor.__doc__ = documented(described)
        return cast(Callable[Concatenate[Instance, P], None], constructor)

    return decorate


def signature_of(model: type[Config]) -> Signature:
    """The signature of a constructor that takes the fields of a model."""
    by_position = issubclass(model, Arguments)
    kind = Parameter.POSITIONAL_OR_KEYWORD if by_position else Parameter.KEYWORD_ONLY
    taken = [Parameter("self", Parameter.POSITIONAL_ONLY)]
    for name, field in fields(model).items():
        default = Parameter.empty if field.is_required() else field.get_default()
        taken.append(Parameter(name, kind, default=default, annotation=field.annotation))
    if model.model_config.get("extra") == "allow":
        taken.append(Parameter("more", Parameter.VAR_KEYWORD, annotation=Any))
    return Signature(taken)


def documented(model: type[Config]) -> str:
    """The docstring of a constructor that takes the fields of a model."""
    lines = [
        fill(f"{name}: {field.description}", 96, initial_indent="    ", subsequent_indent=" " * 8)
        for name, field in fields(model).items()
    ]
    return "\n".join(["Args:", *lines])


def plain(value: Any) -> Any:
    """Lists, dictionaries and numbers of Python for those of OmegaConf, NumPy and pathlib."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return list(map(plain, value))
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value
