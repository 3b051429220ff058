"""What a type says of a value, and what a value says of its like, as JSON Schema."""

from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints, is_typeddict

from ..limits import Existing, Number, Pattern
from .allowed import alternatives, choices_of, entry_of, limits_on

Schema = dict[str, Any]

# `${seed}`, and `???` for what has to be given. It may stand wherever a value stands.
REFERENCE: Schema = {"type": "string", "pattern": r"\$\{|^\?\?\?$"}
NAMES = {int: "integer", float: "number", str: ["string", "number"], bool: "boolean"}
BOUNDS = {
    "least": "minimum",
    "most": "maximum",
    "above": "exclusiveMinimum",
    "below": "exclusiveMaximum",
}


def of_type(annotation: Any) -> list[Schema]:
    """The alternatives of a type, as `allowed.refusal` understands it; an empty one is anything."""
    return [_of_part(part) for part in alternatives(annotation)]


def of_values(values: list[Any]) -> list[Schema]:
    """What may stand where files have these values: the same kinds, as in `values.check_values`."""
    found = []
    for value in values:
        kind = _kind(value)
        if kind not in found:
            found.append(kind)
    return found or [{}]


def either(parts: list[Schema]) -> Schema:
    """One of several, or a reference to another key."""
    distinct = [part for number, part in enumerate(parts) if part not in parts[:number]]
    return {} if {} in distinct else {"anyOf": [*distinct, REFERENCE]}


def _of_part(part: Any) -> Schema:
    if allowed := choices_of(part):
        return {"type": "null"} if allowed == [None] else {"enum": allowed}
    if limits_on(part, Existing):
        return {"type": NAMES[str]}
    if of_entry := entry_of(part):
        return {"type": "array", "items": either(of_type(of_entry[0]))}
    if get_origin(part) in (dict, Mapping):
        return {"type": "object"}
    if is_typeddict(part):
        hints = get_type_hints(part, include_extras=True)
        keys = {name: either(of_type(hint)) for name, hint in hints.items()}
        return {"type": "object", "properties": keys}
    kind = get_args(part)[0] if get_origin(part) is Annotated else part
    if kind not in NAMES:
        return {}
    schema: Schema = {"type": "string" if limits_on(part, Pattern) else NAMES[kind]}
    for limit in limits_on(part, Number):
        bounds = {BOUNDS[name]: bound for name, bound in vars(limit).items()}
        schema |= {name: bound for name, bound in bounds.items() if abs(bound) != float("inf")}
    for pattern in limits_on(part, Pattern):
        schema["pattern"] = f"^(?:{pattern.expression})$"
    return schema


def _kind(value: Any) -> Schema:
    if value is None:
        return {}
    if isinstance(value, str):
        # It says nothing about what else may stand there ("auto" or 2), but for a mapping.
        return {"type": ["string", "number", "boolean", "array", "null"]}
    if isinstance(value, bool):
        return {"type": ["boolean", "null"]}
    if isinstance(value, int | float):
        return {"type": ["number", "null"]}
    return {"type": ["array" if isinstance(value, list) else "object", "null"]}
