"""Whether a value is what a type says, and in which words to refuse it."""

import difflib
import shlex
from collections.abc import Mapping, Sequence
from math import isnan
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    is_typeddict,
)

from ..limits import Existing, Number, Pattern

KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def alternatives(annotation: Any) -> list[Any]:
    """The parts of a union, or the one type."""
    if get_origin(annotation) in (NotRequired, Required):
        return alternatives(*get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return [part for each in get_args(annotation) for part in alternatives(each)]
    return [annotation]


def is_limit(annotation: Any) -> bool:
    """Whether a type says anything of a value that YAML can hold."""
    return any(
        part in KINDS
        or bool(choices_of(part))
        or bool(limits_on(part, Number | Pattern | Existing))
        or any(map(is_limit, entry_of(part)))
        for part in alternatives(annotation)
    )


def refusal(annotation: Any, key: str, value: Any, usual: Any) -> str | None:
    """The line to show for a value that a type does not allow; None if it does.

    Args:
        annotation: A type of which `is_limit` holds.
        key: Where the configuration has the value.
        value: The value.
        usual: The one of the default configuration, or None.
    """
    parts = alternatives(annotation)
    if any(_holds(part, value) for part in parts):
        return None
    for part in parts:
        for limit in limits_on(part, Existing):
            return f"{key}={text(value)}: {_about(limit, value)}"
    choices = [choice for part in parts for choice in choices_of(part)]
    if all(map(choices_of, parts)):
        words = f"one of {', '.join(map(text, choices))}"
        close = difflib.get_close_matches(str(value), map(str, choices), 1)
        works = usual is not None and usual in choices
        example = close[0] if close else usual if works else choices[0]
    else:
        words = " or ".join(map(_words, parts))
        works = any(_holds(part, usual) for part in parts)
        example = usual if works else _example(parts[0])
    return f"{key}={text(value)}: must be {words}, such as {typed(key, example)}"


def text(value: Any) -> str:
    """A value as it is typed."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{text(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text, value)) + "]"
    return str(value)


def typed(key: str, value: Any) -> str:
    """A word of a command line, quoted where a shell has a meaning for what is in it."""
    return shlex.quote(f"{key}={text(value)}")


def _about(limit: Existing, value: Any) -> str | None:
    """What is wrong with a path, which may be none at all: too long, for example."""
    try:
        return limit.refusal(str(value))
    except OSError as error:
        return f"{error.strerror}; give {limit.wanted}"


def limits_on(part: Any, kind: Any) -> list[Any]:
    """What is said of a type beside it, of one of the kinds of `onecurve.limits`."""
    if get_origin(part) is not Annotated:
        return []
    return [limit for limit in part.__metadata__ if isinstance(limit, kind)]


def entry_of(part: Any) -> tuple[Any, ...]:
    """The type of a list's entries; nothing where a type is none of a list."""
    return get_args(part) if get_origin(part) in (list, Sequence) else ()


def choices_of(part: Any) -> list[Any]:
    """The values of a literal, or of null; nothing where a type is none of a choice."""
    if part in (None, NoneType):
        return [None]
    return list(get_args(part)) if get_origin(part) is Literal else []


def _holds(part: Any, value: Any) -> bool:
    if choices := choices_of(part):
        return any(value == choice and type(value) is type(choice) for choice in choices)
    if paths := limits_on(part, Existing):
        return value is not None and all(_about(path, value) is None for path in paths)
    if entries := entry_of(part):
        of_entry = alternatives(entries[0])
        return isinstance(value, list) and all(
            any(_holds(each, entry) for each in of_entry) for entry in value
        )
    limits = limits_on(part, Number | Pattern)
    if get_origin(part) in (dict, Mapping):
        return isinstance(value, Mapping)
    if part is str:
        # A name may look like a number: `data.class_names=[0,1]`.
        return isinstance(value, str | int | float)
    kind = part.__origin__ if get_origin(part) is Annotated else part
    return _is(kind, value) and all(limit.holds(value) for limit in limits)


def _is(kind: Any, value: Any) -> bool:
    if kind is float or kind is int:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and not isnan(value) and (kind is float or value % 1 == 0)
    if kind is str or kind is bool:
        return isinstance(value, kind)
    return isinstance(value, Mapping) or not is_typeddict(kind)


def as_meant(annotation: Any, value: Any) -> Any:
    """A value that a type allows: `1e3` is 1000 where a whole number is meant, and 88 a text."""
    parts = alternatives(annotation)
    if isinstance(value, list):
        entries = next((entry_of(part)[0] for part in parts if entry_of(part)), Any)
        return [as_meant(entries, entry) for entry in value]
    kinds = [part.__origin__ if get_origin(part) is Annotated else part for part in parts]
    holding = [kind for kind, part in zip(kinds, parts, strict=True) if _holds(part, value)]
    if holding == [str]:
        return str(value)
    return int(value) if isinstance(value, float) and holding == [int] else value


def _words(part: Any) -> str:
    if choices := choices_of(part):
        return " or ".join(map(text, choices))
    if patterns := limits_on(part, Pattern):
        return str(patterns[0].words)
    if entries := entry_of(part):
        return f"a list, each entry {' or '.join(map(_words, alternatives(entries[0])))}"
    if get_origin(part) in (dict, Mapping):
        return "a mapping"
    kind = part.__origin__ if get_origin(part) is Annotated else part
    bounds = [limit.words() for limit in limits_on(part, Number)]
    return " ".join([KINDS.get(kind, "another kind of value"), *bounds])


def _example(part: Any) -> Any:
    if choices := choices_of(part):
        return choices[0]
    for limit in limits_on(part, Number | Pattern):
        if isinstance(limit, Pattern):
            return limit.example
        return f"{limit.example(whole=part.__origin__ is int):.15g}"
    return [_example(alternatives(entry)[0]) for entry in entry_of(part)]
