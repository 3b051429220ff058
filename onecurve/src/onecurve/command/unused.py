"""Groups that a task does not use: one that makes its own network needs no `model`."""

import ast
import re
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ..config.validate import dotted, file_of
from ..errors import of_syntax

# The argument of a task that each group becomes.
BECOMES = {
    "model": "network",
    "init": "network",
    "optimizer": "optimizer",
    "scheduler": "scheduler",
}


def unused_groups(config: DictConfig) -> list[str]:
    """The groups that become no argument of the task.

    A group to whose keys others refer is used.
    """
    target = OmegaConf.select(config, "task._target_", throw_on_resolution_failure=False)
    known = _taken(target) if isinstance(target, str) else None
    if known is None:
        return []
    groups = [group for group, argument in BECOMES.items() if argument not in known]
    plain: Any = OmegaConf.to_container(config)
    others = {key: node for key, node in plain.items() if key not in groups}
    written = [str(value) for _, value in dotted(others) if not isinstance(value, dict)]
    return [group for group in groups if not any(map(_reference(group).search, written))]


def leave_out(config: DictConfig, groups: list[str]) -> None:
    """Remove groups, whatever their keys refer to."""
    is_struct = OmegaConf.is_struct(config)
    OmegaConf.set_struct(config, False)
    for group in groups:
        config.pop(group, None)
    OmegaConf.set_struct(config, is_struct)


def not_used(groups: list[str], overrides: list[str]) -> str | None:
    """The line about overrides that change nothing; None if there are none."""
    of = {word: re.split(r"[.=]", word.lstrip("+"))[0] for word in overrides}
    words = [word for word, group in of.items() if group in groups]
    if not words:
        return None
    what = " and no ".join(dict.fromkeys(BECOMES[of[word]] for word in words))
    return f"{' '.join(words)}: not used, as the task takes no {what}; leave it out"


@cache
def _taken(task: str) -> list[str] | None:
    """Names of what a task's `__init__` takes; None if its own file does not tell.

    It is parsed and not imported: that `model` is not used is known before torch is imported, and
    what `model` refers to may be missing.
    """
    module, _, name = task.rpartition(".")
    file = file_of(module)
    if file is None:
        return None
    try:
        parts = ast.parse(file.read_bytes(), filename=str(file)).body
    except SyntaxError as error:
        raise of_syntax(error) from None
    classes = {part.name: part for part in parts if isinstance(part, ast.ClassDef)}
    return _of_class(classes, name)


def _of_class(classes: dict[str, ast.ClassDef], name: str) -> list[str] | None:
    found = classes.get(name)
    if found is None or found.decorator_list:
        return None
    for part in found.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            given = part.args
            named = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            return None if given.kwarg else named[1:]
    bases = [ast.unparse(base).rpartition(".")[2] for base in found.bases]
    # Lightning's own takes any arguments, and makes nothing of them.
    if bases == ["LightningModule"]:
        return []
    return _of_class(classes, bases[0]) if len(bases) == 1 else None


def _reference(group: str) -> re.Pattern[str]:
    return re.compile(r"\$\{[^}]*\b" + group + r"[.}\[]")
