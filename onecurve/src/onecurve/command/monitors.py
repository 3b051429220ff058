"""A metric that callbacks wait for and nothing logs, as far as source files tell: before a run.

A task may log under names that no reader of its source can know. Then nothing is said here, and the
end of the first validation shows it (`onecurve.run.missing_metric`).
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig

from ..metric_names import to_compare_by
from .source import Definition, Source, find
from .values import resolved

LOG = ("log", "log_dict")
# What Lightning makes of a name that is logged in steps and epochs, and for one of several loaders.
ENDINGS = r"(_step|_epoch)?(/dataloader_idx_\d+)?"
# Classes of these log nothing but learning rates.
OTHERS = ("lightning", "pytorch_lightning", "onecurve", "torch", "torchmetrics", "abc", "typing")


class Unknown(Exception):
    """Names are made in a way that is not read here."""


def unlogged_monitor(config: DictConfig) -> str | None:
    """The line about a monitor that certainly nothing logs; None if there is none.

    Args:
        config: A composed configuration.
    """
    plain: Any = resolved(config)
    if not isinstance(plain.get("task"), dict) or (plain.get("trainer") or {}).get("fast_dev_run"):
        return None
    parts = [part for part in (plain.get("callbacks") or {}).values() if isinstance(part, dict)]
    targets = [str(part.get("_target_")) for part in (plain["task"], *parts)]
    waiting = [part.get("monitor") for part in parts]
    if _reads_monitor((plain.get("scheduler") or {}).get("_target_")):
        waiting.append(plain.get("monitor"))
    try:
        patterns = [pattern for target in targets for pattern in _patterns_of(target)]
    except Unknown:
        return None
    for name in waiting:
        if not name or "${" in str(name):
            continue
        known = any(re.fullmatch(f"{pattern}{ENDINGS}", str(name)) for pattern in patterns)
        if not known and not str(name).startswith("lr-"):
            literal = [re.sub(r"\\(.)", r"\1", each) for each in patterns if ".*" not in each]
            # Those of a test come when all is over.
            names = sorted({each for each in literal if not each.startswith("test/")})
            return (
                f"monitor={name}: nothing logs a metric of that name; this task logs "
                f"{', '.join(names) or 'none'}; such as {to_compare_by(names)}"
            )
    return None


def _patterns_of(target: str) -> list[str]:
    if target.partition(".")[0] in OTHERS:
        return []
    found = find(target)
    if found is None:
        raise Unknown
    return [pattern for source, node in _line(*found) for pattern in _patterns(node)]


def _line(source: Source, node: Definition) -> Iterator[tuple[Source, Definition]]:
    """A class and those that it is derived from, but for those of libraries."""
    yield source, node
    for base in getattr(node, "bases", []):
        name = ast.unparse(base).partition("[")[0]
        first = name.partition(".")[0]
        if source.imported.get(first, first).partition(".")[0] not in OTHERS:
            found = source.find(name)
            if found is None:
                raise Unknown
            yield from _line(*found)


def _patterns(node: Definition) -> Iterator[str]:
    """Expressions for the names that the code of a task or a callback logs under."""
    parents = {child: each for each in ast.walk(node) for child in ast.iter_child_nodes(each)}
    modules = [ast.unparse(base).rpartition(".")[2] for base in getattr(node, "bases", [])]
    for each in ast.walk(node):
        parent = parents.get(each)
        if isinstance(each, ast.Attribute) and each.attr in LOG and not _is_mathematics(each):
            if not (isinstance(parent, ast.Call) and parent.func is each):
                raise Unknown
            yield from _names(parent, each.attr)
        elif isinstance(each, ast.Attribute) and each.attr == "callback_metrics":
            if not isinstance(parent, ast.Subscript) or isinstance(parent.ctx, ast.Store):
                raise Unknown
        elif isinstance(each, ast.Name) and each.id in ("self", "pl_module"):
            # Whoever is given the task may log.
            is_asked = isinstance(parent, ast.Attribute) or _is_called(parent, each)
            if not is_asked and not (each.id == "self" and "Callback" in modules):
                raise Unknown


def _names(call: ast.Call, method: str) -> Iterator[str]:
    given = call.args[:1] + [k.value for k in call.keywords if k.arg in ("name", "dictionary")]
    if len(given) != 1:
        raise Unknown
    if method == "log":
        yield _pattern(given[0])
    elif isinstance(given[0], ast.Dict) and None not in given[0].keys:
        yield from (_pattern(key) for key in given[0].keys if key is not None)
    else:
        raise Unknown


def _pattern(name: ast.expr) -> str:
    """An expression for what a text may be: that of a literal, or of what an f-string leaves."""
    if isinstance(name, ast.JoinedStr):
        return "".join(_pattern(part) for part in name.values)
    if isinstance(name, ast.FormattedValue):
        return ".*"
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        return re.escape(name.value)
    raise Unknown


def _is_mathematics(attribute: ast.Attribute) -> bool:
    return ast.unparse(attribute.value) in ("math", "torch", "np", "numpy")


def _is_called(parent: ast.AST | None, name: ast.Name) -> bool:
    """Whether it is the function of a call, or is only looked at."""
    if not isinstance(parent, ast.Call):
        return False
    looks = ("super", "hasattr", "isinstance", "type")
    return parent.func is name or ast.unparse(parent.func) in looks


def _reads_monitor(target: Any) -> bool:
    """Whether a function makes something of its argument `monitor`."""
    found = find(target) if isinstance(target, str) else None
    nodes = ast.walk(found[1]) if found else ()
    return any(isinstance(node, ast.Name) and node.id == "monitor" for node in nodes)
