"""The YAML files of a project and of this library."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from yaml import YAMLError

from .. import configs
from ..errors import UserError

# Where the groups of this library are.
GROUPS = Path(configs.__file__).parent


class ConfigFile(NamedTuple):
    """A configuration file.

    Attributes:
        group: Such as "sweep/sampler"; empty for train.yaml and its like.
        path: Where it is.
        is_global: Whether its keys begin at the top, as an experiment's.
        content: Its keys, without the list of defaults.
        defaults: That list.
    """

    group: str
    path: Path
    is_global: bool
    content: dict[str, Any]
    defaults: list[Any]

    @property
    def place(self) -> str:
        """The dotted key at which its content is."""
        return "" if self.is_global else self.group.replace("/", ".")


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


def _read(path: Path, folder: Path) -> ConfigFile:
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (YAMLError, OSError, UnicodeError) as error:
        raise UserError(f"{path}: is no YAML: {' '.join(str(error).split())}") from None
    keys = content if isinstance(content, dict) else {}
    group = path.parent.relative_to(folder).as_posix().lstrip(".")
    is_global = not group or bool(re.search(r"(?m)^# @package _global_$", path.read_text()))
    plain = {str(key): value for key, value in keys.items() if key != "defaults"}
    return ConfigFile(group, path, is_global, plain, keys.get("defaults") or [])
