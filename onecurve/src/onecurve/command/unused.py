"""Groups that a task makes no use of: who makes its own network needs no `model`."""

import ast
import re
from typing import Any

from omegaconf import DictConfig, OmegaConf

from .signatures import keywords
from .source import find, method
from .values import dotted

# What of a configuration becomes which argument of a task.
BECOMES = {
    "model": "network",
    "init": "network",
    "optimizer": "optimizer",
    "scheduler": "scheduler",
}


def unused_groups(config: DictConfig) -> list[str]:
    """Those groups of a configuration out of which its task is given nothing.

    One to whose keys others refer is used.
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
    """Take groups away, whatever their keys refer to."""
    is_struct = OmegaConf.is_struct(config)
    OmegaConf.set_struct(config, False)
    for group in groups:
        config.pop(group, None)
    OmegaConf.set_struct(config, is_struct)


def not_used(groups: list[str], typed: list[str]) -> str | None:
    """The line about words that were typed and change nothing; None if there are none."""
    of = {word: re.split(r"[.=]", word.lstrip("+"))[0] for word in typed}
    words = [word for word, group in of.items() if group in groups]
    if not words:
        return None
    what = " and no ".join(dict.fromkeys(BECOMES[of[word]] for word in words))
    return f"{' '.join(words)}: not used, as the task takes no {what}; leave it out"


def _taken(task: str) -> list[str] | None:
    """Names of what a task takes; None if that is not known."""
    node = (find(task) or (None, None))[1]
    if isinstance(node, ast.ClassDef) and not method(node, "__init__"):
        bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        # Lightning's own takes any arguments, and makes nothing of them.
        return [] if bases == ["LightningModule"] else keywords(task)
    return keywords(task)


def _reference(group: str) -> re.Pattern[str]:
    return re.compile(r"\$\{[^}]*\b" + group + r"[.}\[]")
