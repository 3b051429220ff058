"""The YAML files of a project and of this library, and what they have at each key."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from yaml import YAMLError

from ..errors import UserError
from .comments import comments
from .values import GROUPS


class ConfigFile(NamedTuple):
    """A configuration file.

    Attributes:
        group: Such as "sweep/sampler"; empty for train.yaml and its like.
        path: Where it is.
        is_global: Whether its keys begin at the top, as an experiment's.
        content: Its keys, without the list of defaults.
        defaults: That list.
        said: What its comments say, by dotted key.
    """

    group: str
    path: Path
    is_global: bool
    content: dict[str, Any]
    defaults: list[Any]
    said: dict[str, str]

    @property
    def place(self) -> str:
        """The dotted key at which its content is."""
        return "" if self.is_global else self.group.replace("/", ".")


class Place:
    """What files have at one dotted key that is a mapping.

    Attributes:
        targets: Each `_target_` that stands there, with the values beside it by key.
        keys: All values by key.
        said: What comments say of a key.
    """

    def __init__(self) -> None:
        self.targets: dict[str, dict[str, list[Any]]] = {}
        self.keys: dict[str, list[Any]] = {}
        self.said: dict[str, str] = {}

    def add(self, node: Mapping[str, Any]) -> None:
        """Note what one file has there."""
        target = node.get("_target_")
        is_name = isinstance(target, str) and re.fullmatch(r"[\w.]+", target)
        beside = self.targets.setdefault(str(target), {}) if is_name else {}
        for key, value in node.items():
            if not (key.startswith("_") and key.endswith("_")):
                self.keys.setdefault(key, []).append(value)
                beside.setdefault(key, []).append(value)


def config_files(folder: Path) -> list[ConfigFile]:
    """The files of a folder, in order of their names.

    Raises:
        UserError: If one of them is no YAML.
    """
    return [_read(path, folder) for path in sorted(folder.rglob("*.yaml"))]


def of_project(configs: Path) -> list[ConfigFile]:
    """The files of a project, and those of this library that it has no file instead of."""
    own = config_files(configs)
    theirs = {(file.group, file.path.name) for file in own}
    ours = config_files(GROUPS)
    return [*own, *(file for file in ours if (file.group, file.path.name) not in theirs)]


def places(files: list[ConfigFile]) -> dict[str, Place]:
    """What the files have, by dotted key; that of the top is empty."""
    found: dict[str, Place] = {}
    for file in files:
        for place, node in _nodes(file.place, file.content):
            found.setdefault(place, Place()).add(node)
            # The group of a group need not have a file itself.
            parent, _, name = place.rpartition(".")
            if name:
                found.setdefault(parent, Place()).keys.setdefault(name, []).append(node)
        for key, text in file.said.items():
            parent, _, name = f"{file.place}.{key}".lstrip(".").rpartition(".")
            if parent in found:
                found[parent].said.setdefault(name, text)
    return found


def _nodes(place: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield place, node
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _nodes(f"{place}.{key}".lstrip("."), value)


def _read(path: Path, folder: Path) -> ConfigFile:
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (YAMLError, OSError, UnicodeError) as error:
        raise UserError(f"{path}: is no YAML: {' '.join(str(error).split())}") from None
    keys = content if isinstance(content, dict) else {}
    group = path.parent.relative_to(folder).as_posix().lstrip(".")
    text = path.read_text()
    is_global = not group or bool(re.search(r"^# @package _global_$", text, re.MULTILINE))
    plain = {str(key): value for key, value in keys.items() if key != "defaults"}
    return ConfigFile(group, path, is_global, plain, keys.get("defaults") or [], comments(text))
