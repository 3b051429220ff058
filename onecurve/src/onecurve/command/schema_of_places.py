"""The JSON schema of what stands at a key of the configuration."""

import re
from collections.abc import Mapping
from typing import Any, get_type_hints, is_typeddict

from ..limits import Callee
from .allowed import alternatives, is_limit, limits_on
from .config_files import Place
from .docstrings import described, summary
from .json_types import REFERENCE, Schema, either, of_type, of_values
from .known_keys import ABOUT
from .signatures import arguments, keywords, named, required
from .values import beside, types_beside

DRAFT = "http://json-schema.org/draft-07/schema#"
# Hydra's own, beside any `_target_`.
OF_HYDRA: dict[str, Schema] = {
    "_target_": {"type": "string"},
    "_partial_": either([{"type": "boolean"}]),
    "_recursive_": either([{"type": "boolean"}]),
    "_convert_": either([{"enum": ["none", "partial", "object", "all"]}]),
    "_args_": either([{"type": "array"}]),
}
NULL: Schema = {"type": "null"}
REFERRING = re.compile(REFERENCE["pattern"])
SCALARS: Schema = {"type": ["string", "number", "boolean", "array", "null"]}


class Shapes:
    """Schemas of the places of one configuration.

    Args:
        found: What the files have, by dotted key.
        lists: The schema of a list of defaults.
    """

    def __init__(self, found: dict[str, Place], lists: Schema) -> None:
        self.places = found
        self.defined: dict[str, Schema] = {"defaults": lists}

    def whole(self, place: str) -> Schema:
        """The schema of a file whose content is at a place."""
        defaults: Schema = {"$ref": "#/definitions/defaults"}
        schema = self._place(place, types_beside(place), {"defaults": defaults})
        if place == "":
            # One's own value, for others to refer to; a group of one's own has files.
            schema["additionalProperties"] = SCALARS
        return {"$schema": DRAFT, **schema, "definitions": self.defined}

    def _place(
        self, path: str, types: Mapping[str, Any], more: dict[str, Schema] | None = None
    ) -> Schema:
        place = self.places.get(path, Place())
        if place.targets:
            return self._parts(place, more or {})
        of = next((each.OF for each in beside(path) if hasattr(each, "OF")), "")
        texts = described(of) | place.said
        keys = {
            name: self._key(
                _inside(path, name),
                types.get(name, Any),
                place.keys.get(name, []),
                texts.get(name),
            )
            # Of the limits at the top each is for one of the commands.
            for name in dict.fromkeys([*(types if path else ()), *place.keys])
        }
        schema: Schema = {"type": "object", "properties": keys | (more or {})}
        parts = [self.places.get(_inside(path, name), Place()) for name in place.keys]
        targets = list(dict.fromkeys(target for part in parts for target in part.targets))
        if any(hasattr(module, "COMPLETE") for module in beside(path)):
            schema["additionalProperties"] = False
        elif targets:
            # Another part of the same kind, under a name of one's own.
            schema["additionalProperties"] = either([self._of_target(targets, {}), NULL])
        return schema

    def _parts(self, place: Place, more: dict[str, Schema]) -> Schema:
        """What one of several classes or functions takes; without a `_target_`, what any takes."""
        if len(place.targets) == 1:
            return self._of_target(list(place.targets), more, always=True)
        taken = [self._takes(target) for target in place.targets]
        keys: dict[str, list[Schema]] = {}
        for each in taken:
            for name, key in each["properties"].items():
                known = keys.setdefault(name, [])
                known += [key] if key not in known else []
        merged: Schema = {
            "properties": {
                name: found[0] if len(found) == 1 else {"anyOf": found}
                for name, found in keys.items()
            }
            | more
        }
        if all("additionalProperties" in each for each in taken):
            merged["additionalProperties"] = False
        named = {"if": {"required": ["_target_"]}, "else": merged}
        return self._of_target(list(place.targets), more) | named

    def _of_target(
        self, targets: list[str], more: dict[str, Schema], always: bool = False
    ) -> Schema:
        """What the class or function takes that stands there; any other is left alone."""
        rules = []
        for target in targets:
            name = f"{target}@file" if more else target
            if name not in self.defined:
                # It may hold another of its kind.
                self.defined[name] = {}
                takes = self._takes(target)
                self.defined[name] = takes | {"properties": takes["properties"] | more}
            chosen: Schema = {"type": "object", "properties": {"_target_": {"const": target}}}
            if not always:
                chosen["required"] = ["_target_"]
            rules.append({"if": chosen, "then": {"$ref": f"#/definitions/{name}"}})
        named: Schema = {"anyOf": [{"enum": targets}, {"type": "string"}]}
        return {"type": "object", "properties": {"_target_": named}, "allOf": rules}

    def _takes(self, target: str) -> Schema:
        """The arguments of a class or a function, but for those that a run hands over itself."""
        at = {path: place for path, place in self.places.items() if target in place.targets}
        # By key: where it is, and what stands there beside this target.
        written = {name: _inside(path, name) for path, place in at.items() for name in place.keys}
        values: dict[str, list[Any]] = {}
        for place in at.values():
            for name, found in place.targets[target].items():
                values.setdefault(name, []).extend(found)
        known, types, texts = keywords(target), arguments(target), described(target)
        for place in at.values():
            texts = place.said | texts
        about = {name for path in at for name in ABOUT.get(path, ())}
        names = dict.fromkeys([*types, *values] if known is None else known)
        handed = required(target) - set(written) | about
        keys = {
            name: self._key(
                written.get(name, ""), types.get(name, Any), values.get(name, []), texts.get(name)
            )
            for name in names
            if name not in handed
        }
        keys |= {name: {"type": "string"} for name in about} | OF_HYDRA
        schema: Schema = {"type": "object", "properties": keys}
        if known is not None:
            schema["additionalProperties"] = False
        for callee in (name for name in types if limits_on(types[name], Callee)):
            others = {*OF_HYDRA, *named(target), "defaults"}
            schema["allOf"] = _by_callee(callee, values.get(callee, []), others - handed)
        if text := summary(target):
            schema["description"] = text
        return schema

    def _key(
        self, path: str, annotation: Any, values: list[Any], text: str | None = None
    ) -> Schema:
        if any(isinstance(value, Mapping) for value in values):
            hints = [part for part in alternatives(annotation) if is_typeddict(part)]
            types = get_type_hints(hints[0], include_extras=True) if hints else types_beside(path)
            # An entry of a group may be taken away, a group may not.
            schema = either([self._place(path, types), *([NULL] if "." in path else [])])
        else:
            schema = either(of_type(annotation) if is_limit(annotation) else of_values(values))
        plain = [value for value in values if isinstance(value, str | int | float)]
        if text:
            schema = schema | {"description": text}
        if len(plain) == len(values) == 1 and not REFERRING.search(str(plain[0])):
            schema = schema | {"default": plain[0]}
        return schema


def _by_callee(name: str, values: list[str], others: set[str]) -> list[Schema]:
    """Which keys there may be beside the name of what is given them, and without it."""
    known = {value: set(keywords(value) or ()) - required(value) for value in values}
    allowed = {value: sorted(keys | others) for value, keys in known.items() if keys}
    rules: list[Schema] = [
        {
            "if": {"type": "object", "required": [name], "properties": {name: {"const": value}}},
            "then": {"propertyNames": {"enum": keys}},
        }
        for value, keys in allowed.items()
    ]
    if set(allowed) == set(values):
        every = sorted(others.union(*known.values()))
        none: Schema = {"type": "object", "not": {"required": [name]}}
        rules.append({"if": none, "then": {"propertyNames": {"enum": every}}})
    return rules


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")
