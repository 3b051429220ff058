"""JSON schemas of the YAML files, for editors: ``python -m onecurve.command.schemas``.

They lie in a folder `.schemas` beside that of the files, each of which names its own in a line
``# yaml-language-server: $schema=../../.schemas/GROUP.json``. A schema says of each key
what the command line says of it: what the signature of its `_target_` takes, with limits; or what
stands in the group's `limits.py`; or, where neither tells, what the files have there.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from ..errors import UserError, stop
from .config_files import ConfigFile, of_project, places
from .json_types import Schema
from .schema_of_places import Shapes
from .values import GROUPS

FOLDER = ".schemas"
GLOBAL = "_global_"


def schemas(configs: Path) -> dict[str, Schema]:
    """All of them by name: that of a group, of a file in no group, and of what is `_global_`.

    Args:
        configs: The folder `configs` of a project.

    Raises:
        UserError: If a file is no YAML.
    """
    files = of_project(configs)
    of_groups = [file for file in files if not file.is_global]
    # What experiments change is no statement of what there is to change.
    of_library = [file for file in files if file.is_global and file.path.is_relative_to(GROUPS)]
    primaries = [file for file in files if not file.group]
    lists = _lists(files)
    found: dict[str, Schema] = {}
    for group in dict.fromkeys(file.place for file in of_groups):
        found[group] = Shapes(places([*of_groups, *of_library]), lists).whole(group)
    for primary in primaries:
        chosen = _chosen(primary)
        mine = [file for file in of_groups + of_library if file.group.split("/")[0] in chosen]
        found[primary.path.stem] = Shapes(places([primary, *mine]), lists).whole("")
    # Experiments are chosen where most is.
    most = sorted(primaries, key=lambda file: -len(_chosen(file)))[:1]
    found[GLOBAL] = Shapes(places([*most, *of_groups, *of_library]), lists).whole("")
    return found


def schema_name(file: ConfigFile) -> str:
    """The schema of a file."""
    if not file.group:
        return file.path.stem
    return GLOBAL if file.is_global else file.place


def line_of(file: ConfigFile) -> str:
    """The line by which an editor finds the schema of a file."""
    up = "../" * (file.group.count("/") + 2 if file.group else 1)
    return f"# yaml-language-server: $schema={up}{FOLDER}/{schema_name(file)}.json"


def write(configs: Path) -> None:
    """Write those of a folder of files, and remove those of groups that are gone."""
    folder = configs.parent / FOLDER
    made = {folder / f"{name}.json": schema for name, schema in schemas(configs).items()}
    folder.mkdir(exist_ok=True)
    for old in set(folder.glob("*.json")) - set(made):
        old.unlink()
    for path, schema in made.items():
        path.write_text(json.dumps(schema) + "\n")


def _chosen(primary: ConfigFile) -> set[str]:
    """The groups in its list of defaults, by the first part of their names."""
    entries = [entry for entry in primary.defaults if isinstance(entry, dict)]
    return {str(name).split()[-1].split("/")[0] for entry in entries for name in entry}


def _lists(files: Iterable[ConfigFile]) -> Schema:
    """A list of defaults. A choice that is none of these may be a file that was added since."""
    groups: dict[str, list[str]] = {}
    for file in files:
        if file.group:
            groups.setdefault(file.group, []).append(file.path.stem)
    choices: dict[str, Schema] = {}
    entries: dict[str, Schema] = {}
    for group, names in groups.items():
        one: Schema = {"anyOf": [{"enum": sorted(set(names))}, {"type": "string"}]}
        choices[group] = {"anyOf": [one, {"type": "null"}, {"type": "array", "items": one}]}
        reference = {"$ref": f"#/definitions/defaults/definitions/{group.replace('/', '~1')}"}
        entries |= dict.fromkeys((group, f"override /{group}", f"optional {group}"), reference)
    entry: Schema = {"type": ["string", "object"], "properties": entries}
    return {"type": "array", "items": entry, "definitions": choices}


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
