"""JSON schemas of the YAML files, for editors: ``onecurve schemas``.

They lie in a folder `.schemas` beside that of the files, each of which names its own in a line
``# yaml-language-server: $schema=../../.schemas/GROUP.json``. A schema says of each key what the
command line says of it: what the models have (`onecurve.app.config.validate`).
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hydra.utils import get_object
from omegaconf import OmegaConf
from pydantic.json_schema import GenerateJsonSchema
from yaml import YAMLError

from ... import configs as library
from ...config_model import Config, fields
from ...errors import UserError, stop
from ..config.groups import Group
from ..config.validate import COLLECTIONS, COMMANDS, model_of, of_target
from ..run.constructors import model_of_constructor

# Where the groups of this library are.
GROUPS = Path(library.__file__).parent
FOLDER = ".schemas"
GLOBAL = "_global_"
DRAFT = "http://json-schema.org/draft-07/schema#"
Schema = dict[str, Any]

# `${seed}`, and `???` for what has to be given. It may stand wherever a value stands.
REFERENCE: Schema = {"type": "string", "pattern": r"\$\{|^\?\?\?$"}
SCALARS: Schema = {"type": ["string", "number", "boolean", "array", "null"]}
TEXT = ["string", "number", "boolean"]  # a name may look like a number: `data.class_names=[0,1]`
# Hydra's own: at the top of a file, and beside any `_target_`.
LIST: dict[str, Schema] = {"defaults": {"type": "array"}}
OF_HYDRA: dict[str, Schema] = LIST | {
    f"_{name}_": {} for name in ("target", "partial", "recursive", "convert", "args")
}


class ConfigFile(NamedTuple):
    """A configuration file, whose keys begin at the top if it `is_global`, as an experiment's.

    The group is such as "sweep/sampler"; it is empty for train.yaml and its like.
    """

    group: str
    path: Path
    is_global: bool
    content: dict[str, Any]

    @property
    def schema(self) -> str:
        """The name of its schema."""
        if not self.group:
            return self.path.stem
        return GLOBAL if self.is_global else self.group.replace("/", ".")


def config_files(folder: Path) -> list[ConfigFile]:
    """The files of a folder, in order of their names."""
    return [_read(path, folder) for path in sorted(folder.rglob("*.yaml"))]


def of_project(configs: Path) -> list[ConfigFile]:
    """The files of a project, and those of this library that it does not replace."""
    files = [*config_files(GROUPS), *config_files(configs)]
    return [*{(file.group, file.path.name): file for file in files}.values()]


def _read(path: Path, folder: Path) -> ConfigFile:
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (YAMLError, OSError, UnicodeError) as error:
        raise UserError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    keys: Any = content if isinstance(content, dict) else {}
    group = path.parent.relative_to(folder).as_posix().lstrip(".")
    is_global = not group or bool(re.search(r"(?m)^# @package _global_$", path.read_text()))
    return ConfigFile(group, path, is_global, keys)


def schemas(configs: Path) -> dict[str, Schema]:
    """All schemas of a project by name: of groups, commands, and files that are `_global_`."""
    files = of_project(configs)
    nodes: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        if not file.is_global:
            nodes.setdefault(file.schema, []).append(file.content)
    groups = {name: _of_group(name, contents) for name, contents in nodes.items()}
    commands: dict[str, dict[str, Any]] = {name: {} for name in COMMANDS}
    commands |= {file.schema: file.content for file in files if not file.group}
    full = {name: _of_command(name, content, groups) for name, content in commands.items()}
    all_schemas = {**groups, **full, GLOBAL: full["train"]}
    return {name: {"$schema": DRAFT, **schema} for name, schema in all_schemas.items()}


def write(configs: Path) -> None:
    """Write those of a folder of files, and remove those of groups that are gone."""
    folder = configs.parent / FOLDER
    files = {folder / f"{name}.json": schema for name, schema in schemas(configs).items()}
    folder.mkdir(exist_ok=True)
    for old in set(folder.glob("*.json")) - set(files):
        old.unlink()
    for path, schema in files.items():
        path.write_text(json.dumps(schema) + "\n")


def _of_command(name: str, content: Mapping[str, Any], groups: Mapping[str, Schema]) -> Schema:
    """The schema of train.yaml and its like, with the content of the file."""
    model = model_of("", {}, name)
    assert model is not None
    schema = of_model(model)
    keys = schema["properties"]
    for key, field in fields(model).items():
        if field.annotation == Group:
            # Without training, the class of the data is that of the checkpoint.
            has_files = key in groups and (key != "data" or "task" in keys)
            described = groups[key] if has_files else _of_group(key, [])
            keys[key] = described | {"description": field.description}
    others = {group: schema for group, schema in groups.items() if "." not in group}
    schema["properties"] = {"hydra": True} | dict.fromkeys(content, True) | others | keys
    # A value of the user's, for others to refer to; groups of the user's have files.
    return schema | {"additionalProperties": SCALARS}


def _of_group(group: str, nodes: list[dict[str, Any]]) -> Schema:
    if group in COLLECTIONS:
        entries = {name: entry for content in nodes for name, entry in content.items()}
        entries.pop("defaults", None)
        named = {name: _or_null(_of_objects([entry])) for name, entry in entries.items()}
        # Another of these classes, under a name of the user's.
        others = _or_null(_of_objects(entries.values()))
        return {"type": "object", "properties": named | LIST, "additionalProperties": others}
    if any("_target_" in node for node in nodes):
        return _of_objects(nodes)
    model = model_of(group, {})
    return of_model(model) if model else {"type": "object"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}, REFERENCE]}


def _of_objects(nodes: Iterable[Any]) -> Schema:
    """The schema of an object: what the class or function takes that stands there.

    Without a `_target_` it is one of those that the files name; another is left alone.
    """
    targets = {str(node["_target_"]): None for node in nodes if node and "_target_" in node}
    models = {target: model for target in targets if (model := _of_class(target))}
    known = [
        of_model(model, OF_HYDRA | {"_target_": {"const": target}})
        for target, model in models.items()
    ]
    names = {name for each in known for name in each["properties"]}
    for target, each in zip(models, known, strict=True):
        # A class of the library that takes any key takes none that another alone has.
        if target.startswith("onecurve."):
            each["properties"] = dict.fromkeys(names, False) | each["properties"]
    other: Schema = {"properties": {"_target_": {"type": "string", "not": {"enum": [*models]}}}}
    if known and len(models) == len(targets):
        other["required"] = ["_target_"]
    return {"type": "object", "anyOf": [*known, other]}


def _of_class(target: str) -> type[Config] | None:
    """The model of a class or function, of which those of the project are imported."""
    if model := of_target(target):
        return model
    try:
        return model_of_constructor(get_object(target))
    except Exception:  # it cannot be imported now: no keys of it are checked
        return None


class OfEditor(GenerateJsonSchema):
    """What pydantic says of a key; a reference to another may stand for its value."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_field_schema(self, schema: Any) -> Schema:
        value = super().model_field_schema(schema)
        about = {"default": value.pop("default")} if value.get("default") else {}
        return {"anyOf": [value, REFERENCE]} | about

    def list_schema(self, schema: Any) -> Schema:
        values = super().list_schema(schema)
        return values | {"items": {"anyOf": [values["items"], REFERENCE]}}

    def str_schema(self, schema: Any) -> Schema:
        value = super().str_schema(schema)
        return value if "pattern" in value else value | {"type": TEXT}


def of_model(model: type[Config], more: Mapping[str, Schema] = LIST) -> Schema:
    """The schema of a mapping that a model describes, and of `more` keys."""
    keys = model.model_json_schema(schema_generator=OfEditor).get("properties", {})
    schema: Schema = {"type": "object", "properties": keys | dict(more)}
    if text := model.__doc__:
        schema["description"] = text.partition("\n")[0]
    if model.model_config.get("extra") != "allow":
        schema["additionalProperties"] = False
    return schema


def main(configs: str = "configs") -> None:
    """Write those of a project, and of this library where it lies in the project."""
    try:
        if not Path(configs).is_dir():
            raise UserError(f"{configs}: there is no such folder; give that of the YAML files")
        write(Path(configs).resolve())
        if GROUPS.is_relative_to(Path.cwd()):
            write(GROUPS)
    except UserError as error:
        stop(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
