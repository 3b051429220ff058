"""JSON schemas, for editors, of what the models describe."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..config_model import Config, fields
from .models import of_target

Schema = dict[str, Any]
GROUP = Mapping[str, Any]

# `${seed}`, and `???` for what has to be given. It may stand wherever a value stands.
REFERENCE: Schema = {"type": "string", "pattern": r"\$\{|^\?\?\?$"}
NULL: Schema = {"type": "null"}
SCALARS: Schema = {"type": ["string", "number", "boolean", "array", "null"]}
HAS_TARGET: Schema = {"type": "object", "required": ["_target_"]}
# A name may look like a number: `data.class_names=[0,1]`.
TEXT = ["string", "number", "boolean"]


def either(*parts: Schema) -> Schema:
    """One of several, or a reference to another key."""
    return {} if {} in parts else {"anyOf": [*parts, REFERENCE]}


# Hydra's own, beside any `_target_`.
OF_HYDRA: dict[str, Schema] = {
    "_target_": {"type": "string"},
    "_partial_": either({"type": "boolean"}),
    "_recursive_": either({"type": "boolean"}),
    "_convert_": either({"enum": ["none", "partial", "object", "all"]}),
    "_args_": either({"type": "array"}),
}


def of_model(model: type[Config], more: Mapping[str, Schema] | None = None) -> Schema:
    """The schema of a mapping that a model describes.

    Args:
        model: The model.
        more: What else may be there, by key.
    """
    keys = model.model_json_schema(by_alias=True).get("properties", {})
    found: Schema = {
        "type": "object",
        "properties": {name: _key(schema) for name, schema in keys.items()} | dict(more or {}),
    }
    if text := model.__doc__:
        found["description"] = text.partition("\n")[0]
    if model.model_config.get("extra") != "allow":
        found["additionalProperties"] = False
    return found


def descriptions(model: type[Config]) -> dict[str, str]:
    """What is said of each key that is a value, and no group."""
    found = fields(model).items()
    return {name: field.description or "" for name, field in found if field.annotation != GROUP}


def of_targets(targets: Iterable[str], defined: dict[str, Schema], more: Schema) -> Schema:
    """The schema of an object: what the class or function takes that stands there.

    Args:
        targets: Those that the files name. Without a `_target_` it is one of them; another is left
            alone.
        defined: The definitions of a file's schema, to which theirs are added.
        more: What else may be there, by key: the list of defaults at the top of a file.
    """
    known = {target: model for target in targets if (model := of_target(target))}
    rules: list[Schema] = []
    for target, model in known.items():
        name = f"{target}@file" if more else target
        defined.setdefault(name, of_model(model, OF_HYDRA | more))
        chosen = HAS_TARGET | {"properties": {"_target_": {"const": target}}}
        rules.append({"if": chosen, "then": {"$ref": f"#/definitions/{name}"}})
    schema: Schema = {"type": "object", "properties": {"_target_": {"type": "string"}}}
    if set(targets) == set(known) and known:
        rules.append({"if": HAS_TARGET, "else": _any_of(known.values(), more)})
    return schema | ({"allOf": rules} if rules else {})


def _any_of(models: Iterable[type[Config]], more: Schema) -> Schema:
    """What one of several classes takes, where nothing tells which."""
    keys: dict[str, list[Schema]] = {}
    is_open = False
    for model in models:
        described = of_model(model, OF_HYDRA | more)
        is_open |= "additionalProperties" not in described
        for name, key in described["properties"].items():
            known = keys.setdefault(name, [])
            known += [key] if key not in known else []
    merged: Schema = {
        "properties": {
            name: found[0] if len(found) == 1 else {"anyOf": found} for name, found in keys.items()
        }
    }
    return merged if is_open else merged | {"additionalProperties": False}


def _key(schema: Schema) -> Schema:
    """What pydantic says of a key, or a reference to another."""
    about = {name: schema[name] for name in ("description", "default") if schema.get(name)}
    parts = schema.get("anyOf") or [
        {name: value for name, value in schema.items() if name not in (*about, "title", "default")}
    ]
    return either(*map(_part, parts)) | about


def _part(schema: Schema) -> Schema:
    schema = {name: value for name, value in schema.items() if name != "title"}
    if schema.get("type") == "string" and not {"enum", "const", "pattern"} & set(schema):
        return schema | {"type": TEXT}
    if schema.get("type") == "object":
        return {"type": "object"}
    if isinstance(items := schema.get("items"), dict) and items:
        entries = [_part(part) for part in items.get("anyOf", [items])]
        return schema | {"items": either(*entries)}
    return schema
