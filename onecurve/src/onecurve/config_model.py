"""`Config`: a pydantic model of the arguments of a class, or of the keys of a group.

A class can define its model inside of itself::

    class GradientNoise(Callback):
        class Config(onecurve.Config):
            scale: float = Field(gt=0, le=1, description="Standard deviation of the noise.")
            every: int | None = Field(None, ge=1)

A wrong value gets one line, which this file builds from the types: what is allowed, and an example.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite, isnan
from operator import ge, gt, le, lt
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from .spelling import nearest, no_such_key

KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
BOUNDS = {Gt: ("above", "gt"), Ge: ("from", "ge"), Le: ("to", "le"), Lt: ("and below", "lt")}
WITHIN: dict[Any, Callable[[float, float], bool]] = {Gt: gt, Ge: ge, Le: le, Lt: lt}


class Run(Protocol):
    """What rules of combinations may ask of a run: `onecurve.app.composed_run.ComposedRun`."""

    strategy: str
    accelerator: str
    one_process: bool
    devices: int
    num_nodes: int
    world_size: int
    batch_size: int | None

    def get(self, key: str, default: Any = None) -> Any: ...

    def has(self, callback: str) -> bool: ...


class Config(BaseModel):
    """The keys of a class or a group. Other keys are errors, unless ``extra="allow"``."""

    model_config = ConfigDict(
        extra="forbid", strict=True, defer_build=True, protected_namespaces=()
    )

    def refusals(self, run: Any, key: str) -> Iterator[str]:
        """Yield one error line for each combination with other keys that cannot run.

        Args:
            run: The composed run, an `onecurve.app.composed_run.ComposedRun`.
            key: The key of the object in the configuration, such as "callbacks.swa".
        """
        yield from ()

    def given(self) -> dict[str, Any]:
        """The values that are not defaults, by their names in a configuration."""
        known = {
            field.alias or name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if name in self.model_fields_set
        }
        return known | (self.model_extra or {})

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> "Checked[Self]":
        """Validate a node of a configuration: values by key, beside those of Hydra's own."""
        # A partial gets the missing arguments when it is called.
        is_open = values.get("_partial_") or "_args_" in values
        values = {key: value for key, value in values.items() if not re.fullmatch("_.*_", str(key))}
        known = fields(cls)
        changed: dict[str, Any] = {}
        problems: dict[Any, Problem] = {}
        for name, value in values.items():
            # Values of other types need no conversion.
            if isinstance(value, int | float | list) and not isinstance(value, bool):
                if _has_nan(value):
                    problems[name] = Problem(cls, name, "no_number", None, values)
                elif name in known:
                    meant = as_meant(annotation_of(known[name]), value)
                    if repr(meant) != repr(value):
                        changed[name] = meant
        try:
            model = cls.model_validate({**values, **changed})
        except ValidationError as error:
            model = cls.model_construct(**{**values, **changed})
            for each in error.errors(include_url=False, include_input=False):
                if is_open and each["type"] == "missing":
                    continue
                key = str(each["loc"][0]) if each["loc"] else None
                reason = _reason(each)
                # For a union, keep the most specific reason.
                if key not in problems or reason:
                    problems[key] = Problem(cls, key, each["type"], reason, values)
        return Checked(model, list(problems.values()), changed)


Model = TypeVar("Model", bound=Config)


class Checked(NamedTuple, Generic[Model]):
    """The result of validating values: a model, of wrong ones as well, and what is wrong with them.

    Some values were `changed`, to 1000 from `1e3` and to "88" from 88.
    """

    model: Model
    problems: "list[Problem]"
    changed: dict[str, Any]


class Problem(NamedTuple):
    """What is wrong with one key of a group, or with several keys together.

    Its kind is pydantic's name of the error; the reason, the message of a validator.
    """

    model: type[Config]
    name: str | None
    kind: str
    reason: str | None
    values: Mapping[str, Any]

    def line(self, key_prefix: str, default: Any = None) -> str:
        """The error line; its example is the default, where the key allows that.

        Args:
            key_prefix: The key of the group.
            default: What the configuration has without overrides; None for the model's default.
        """
        if self.name is None:
            return f"{key_prefix}: {self.reason}"
        key = f"{key_prefix}.{self.name}".lstrip(".")
        if self.kind == "extra_forbidden":
            return no_such_key(key, [f"{key_prefix}.{name}" for name in fields(self.model)])
        if self.kind == "missing":
            return f"{key} is needed: add {key}=..."
        value = self.values[self.name]
        # As a file has it, where quotes make the difference.
        given = f'{key}="{value}"' if _reads_as_number(value) else f"{key}={text(value)}"
        if self.reason:
            return f"{given}: {self.reason}"
        field = fields(self.model).get(self.name)
        if field is None:
            return f"{given}: must be a number, or leave it out"
        default = field.get_default() if default is None else default
        holds = self._holds(default)
        return f"{given}: must be {_must_be(field, value, key, default, holds)}"

    def _holds(self, value: Any) -> bool:
        assert self.name is not None
        checked = self.model.checked({**self.values, self.name: value})
        return all(problem.name != self.name for problem in checked.problems)


@dataclass(frozen=True, eq=False)
class Words:
    """How an error line describes a type, and a value that works."""

    words: str
    example: Any


Count = Annotated[int, Field(ge=1)]
Time = Annotated[
    str, Field(pattern=r"^\d+:\d\d:\d\d:\d\d$"), Words("days:hours:minutes:seconds", "00:12:00:00")
]


def missing(value: str) -> str | None:
    """Why a path is not that of a file or folder; None if it is."""
    path = Path(value).expanduser()
    if not path.exists():
        return "there is no such file"
    # Not a device or a pipe, which may never end.
    return None if path.is_file() or path.is_dir() else "is neither a file nor a folder"


def existing(wanted: str) -> AfterValidator:
    """Validate that a value is the path of an existing file or folder.

    Args:
        wanted: What to give, and an example: ``Annotated[Any, existing("a folder of images")]``.
    """
    return AfterValidator(lambda value: existing_path(value, wanted))


def existing_path(value: Any, wanted: str, damage: Callable[[str], str | None] = missing) -> Any:
    """The text of a path, after checking that it exists and is intact; None for null."""
    if value is None:
        return None
    try:
        reason = missing(text(value)) or damage(text(value))
    except OSError as error:
        # The value may not be a valid path: it may be too long, for example.
        reason = str(error.strerror)
    if reason:
        raise ValueError(f"{reason}; give {wanted}")
    return text(value)


def text(value: Any) -> str:
    """A value as it is written in an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{text(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(text, value)) + "]"
    return str(value)


def as_override(key: str, value: Any) -> str:
    """KEY=VALUE for a command line, quoted if a shell would interpret it."""
    return shlex.quote(f"{key}={text(value)}")


@cache
def fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Fields by their names in a configuration, which may be Python keywords such as `async`."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def annotation_of(field: FieldInfo) -> Any:
    """The type of a field including its metadata."""
    if not field.metadata:
        return field.annotation
    return Annotated[field.annotation, *field.metadata]


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union, or the type itself."""
    if get_origin(annotation) in (Union, UnionType):
        return [member for each in get_args(annotation) for member in alternatives(each)]
    if get_origin(annotation) is Annotated:
        members, said = alternatives(annotation.__origin__), annotation.__metadata__
        return [member if choices(member) else Annotated[member, *said] for member in members]
    return [annotation]


def as_meant(annotation: Any, value: Any) -> Any:
    """Convert `1e3` to 1000 where only integers are allowed, and 88 to text where only text is."""
    if value is None or isinstance(value, str | Mapping):
        return value
    members = alternatives(annotation)
    if isinstance(value, list):
        entries = next((_entry(kind) for kind in members if _entry(kind) is not None), Any)
        return [as_meant(entries, entry) for entry in value]
    kinds = {_plain(kind) for kind in members}
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    is_text = str in kinds and kinds.isdisjoint({int, float, bool, Any})
    return text(value) if is_text and value not in _choices(members) else value


def _reason(error: Any) -> str | None:
    """The message of a validator, or pydantic's about a part of a value; otherwise None."""
    if error["type"] in ("value_error", "assertion_error"):
        return str(error["ctx"]["error"])
    if len(error["loc"]) > 1 and error["type"] in ("missing", "extra_forbidden"):
        return f"{error['loc'][-1]}: {error['msg']}"
    return None


def _reads_as_number(value: Any) -> bool:
    """Whether a text would be read as a number without quotes."""
    try:
        return isinstance(value, str) and isfinite(float(value))
    except ValueError:
        return False


def _has_nan(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_nan, value))
    return isinstance(value, float) and isnan(value)


def _plain(annotation: Any) -> Any:
    return annotation.__origin__ if get_origin(annotation) is Annotated else annotation


def beside(annotation: Any) -> list[Any]:
    """The metadata of a type: bounds, words."""
    if get_origin(annotation) is not Annotated:
        return []
    said = annotation.__metadata__
    return [
        one for each in said for one in (each.metadata if hasattr(each, "metadata") else [each])
    ]


def _entry(annotation: Any) -> Any:
    """The type of a list's entries; None if the type is not a list."""
    annotation = _plain(annotation)
    return get_args(annotation)[0] if get_origin(annotation) in (list, Sequence) else None


def choices(annotation: Any) -> list[Any]:
    """The values of a Literal, or null; empty for any other type."""
    if annotation in (None, NoneType):
        return [None]
    return list(get_args(annotation)) if get_origin(annotation) is Literal else []


def _choices(annotations: Sequence[Any]) -> list[Any]:
    return [choice for annotation in annotations for choice in choices(annotation)]


def _must_be(field: FieldInfo, value: Any, key: str, default: Any, holds: bool) -> str:
    members = alternatives(annotation_of(field))
    if all(map(choices, members)):
        allowed = _choices(members)
        close = nearest(str(value), list(map(str, allowed)))
        example = close or (default if holds else allowed[0])
        return f"one of {', '.join(map(text, allowed))}, such as {as_override(key, example)}"
    described = list(map(_described, members))
    example = default if holds else described[0].example
    allowed_words = " or ".join(each.words for each in described)
    return f"{allowed_words}, such as {as_override(key, example)}"


def _described(annotation: Any) -> Words:
    """How a line describes a type, and a value that is allowed."""
    if allowed := choices(annotation):
        return Words(" or ".join(map(text, allowed)), allowed[0])
    if words_of := [each for each in beside(annotation) if isinstance(each, Words)]:
        return words_of[0]
    if (entry := _entry(annotation)) is not None:
        entries = list(map(_described, alternatives(entry)))
        words = " or ".join(each.words for each in entries)
        return Words(f"a list, each entry {words}", [entries[0].example])
    if get_origin(_plain(annotation)) in (dict, Mapping):
        return Words("a mapping", {})
    bounds = {
        kind: getattr(each, name)
        for kind, (_, name) in BOUNDS.items()
        for each in beside(annotation)
        if isinstance(each, kind)
    }
    said = " ".join(f"{BOUNDS[kind][0]} {bound:.15g}" for kind, bound in bounds.items())
    known = KINDS.get(_plain(annotation), "another kind of value")
    words = f"{known} {said.removeprefix('and ')}".rstrip()
    return Words(words, _number_within(bounds, is_whole=_plain(annotation) is int))


def _number_within(bounds: Mapping[Any, float], is_whole: bool) -> str | None:
    low, high = bounds.get(Ge, bounds.get(Gt)), bounds.get(Le, bounds.get(Lt))
    tried = [] if low is None else [low, low + 1]
    tried += [] if low is None or high is None else [(low + high) / 2]
    tried += [0] if high is None else [high, high - 1, 0]
    fits = [
        number
        for number in tried
        if not (is_whole and number % 1)
        if all(WITHIN[kind](number, bound) for kind, bound in bounds.items())
    ]
    return f"{fits[0]:.15g}" if fits else None
