"""Validates a composed configuration against the models; errors are one line each."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ..composed_run import ComposedRun
from ..config_model import Config, Problem, fields, text
from ..errors import UserError
from .keys import dotted, refers, resolved
from .models import COLLECTIONS, OBJECTS, TARGETS, file_of, folders_of, model_of

# The key of a part of the configuration, with its model, or with what is wrong.
Described = tuple[str, Config]
Found = tuple[str, Problem]


def validate(
    config: DictConfig,
    config_name: str,
    deleted: list[str],
    without: list[str],
    default: Callable[[str], Any],
    is_null: Callable[[str], bool],
) -> list[Described]:
    """Validate every key by itself, reject the first that is wrong, and return parts with a model.

    In place, values get the type of their key: `1e3` becomes an integer, or 88 a string.

    Args:
        config: The composed configuration.
        config_name: Name of the primary configuration, such as "train".
        deleted: Keys that the command line deletes.
        without: Groups that the task does not use.
        default: Of a key, the value that it has without overrides; None if it is missing.
        is_null: Whether a key exists without overrides, and is null.
    """
    plain: Any = OmegaConf.to_container(config)
    is_training = "task" in plain or "~task" in deleted
    for line in _no_objects(plain, default) if is_training else ():
        raise UserError(line)
    for key, node in dotted(plain):
        if isinstance(node, dict) and "_target_" in node and (wrong := _no_target(key, node)):
            raise UserError(wrong)
    written = dict(dotted(plain))
    for key in deleted:
        # Before interpolations are resolved, because one may refer to it.
        if key not in without and _is_needed(key, {"": plain, **written}, config_name):
            raise UserError(f"~{key}: a run needs it; leave ~{key} out")

    def is_right(key: str, problem: Problem) -> bool:
        if problem.kind == "missing":
            return key in without
        has_null = problem.name is not None and problem.values[problem.name] is None
        # Null by default, or by interpolation of a key such as the run directory, not known yet.
        return has_null and (refers(written[key]) or is_null(key))

    described, problems, meant = _described(resolved(config), config_name, is_right)
    # Missing keys come first, then unknown ones. Keys that refer to another key come last, so that
    # the error names the other one.
    order = {"missing": 0, "extra_forbidden": 1}
    problems.sort(key=lambda at: (order.get(at[1].kind, 2), refers(written.get(key_of(*at)))))
    for place, problem in problems:
        raise UserError(problem.line(place, default(key_of(place, problem))))
    for key, value in meant.items():
        OmegaConf.update(config, key, value)
    return described


def refusals(config: DictConfig, described: list[Described]) -> Iterator[str]:
    """Errors about combinations of keys that are valid by themselves, one line each."""
    run = ComposedRun(config)
    # Devices and ranks first: the rules of strategies rely on them.
    for place, model in sorted(described, key=lambda at: at[0] not in ("", "trainer", "launch")):
        yield from model.refusals(run, place)


def validate_group(place: str, values: dict[str, Any]) -> None:
    """Validate the keys of one group, as `validate` does."""
    _, problems, _ = _described({place: values}, None, lambda _, problem: problem.kind == "missing")
    for at, problem in problems:
        raise UserError(problem.line(at))


def key_of(place: str, problem: Problem) -> str:
    """The dotted key that is wrong."""
    return f"{place}.{problem.name or ''}".strip(".")


def _described(
    values: dict[str, Any], config_name: str | None, is_right: Callable[[str, Problem], bool]
) -> tuple[list[Described], list[Found], dict[str, Any]]:
    """Parts with a model, what is wrong with others, and keys whose values have another type.

    Without a name, only of groups.
    """
    described: list[Described] = []
    problems: list[Found] = []
    meant: dict[str, Any] = {}
    whole = [("", values)] if config_name is not None else []
    for place, node in (*whole, *dotted(values)):
        model = model_of(place, node, config_name or "") if isinstance(node, dict) else None
        if model is None:
            continue
        # Not Hydra's, such as `_partial_`.
        given = {key: value for key, value in node.items() if not re.fullmatch("_.*_", str(key))}
        # A partial gets the missing arguments when it is called.
        is_open = node.get("_partial_") or "_args_" in node
        made, found, changed = model.checked(given)
        wrong = [
            (place, each)
            for each in found
            if not (is_open and each.kind == "missing")
            if not is_right(key_of(place, each), each)
        ]
        problems += wrong
        if not wrong:
            described.append((place, made or model.model_construct(**{**given, **changed})))
            meant |= {f"{place}.{name}".lstrip("."): value for name, value in changed.items()}
    return described, problems, meant


def _is_needed(key: str, nodes: Mapping[str, Any], config_name: str) -> bool:
    place, _, name = key.rpartition(".")
    node = nodes.get(place)
    model = model_of(place, node, config_name) if isinstance(node, dict) else None
    field = fields(model).get(name) if model else None
    return field is not None and field.is_required() and name not in (node or ())


def _no_objects(plain: dict[str, Any], default: Callable[[str], Any]) -> Iterator[str]:
    """Errors about parts that need a class and do not name one."""
    parts = {name: plain[name] for name in OBJECTS if isinstance(plain.get(name), dict)}
    for group in COLLECTIONS:
        entries = plain.get(group)
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            if entry:
                parts[f"{group}.{name}"] = entry
    for key, node in parts.items():
        if isinstance(node, dict) and "_target_" in node:
            continue
        if target := default(f"{key}._target_"):
            yield f"{key}._target_ is needed: add {key}._target_={target}"
        elif "." in key:
            group = key.partition(".")[0]
            yield (
                f"{key}={text(node)}: has no class; use an existing one instead, such as "
                f"+{group}=NAME, or name its class: +{key}._target_=..."
            )


def _no_target(key: str, node: dict[str, Any]) -> str | None:
    """Why `_target_` cannot name a class or function, as far as can be told without importing."""
    target = node["_target_"]
    if not isinstance(target, str) or "." not in target.strip("."):
        return (
            f"{key}._target_={target}: must be the dotted name of a class or a function, such as "
            f"{key}._target_=my_package.my_module.MyClass"
        )
    top, _, inside = target.partition(".")
    if "${" in target or target in TARGETS:
        return None
    if folders_of(top) is None:
        return (
            f"{key}._target_={target}: the package {top} is not installed; install it, or name "
            "another class"
        )
    module = file_of(target.rpartition(".")[0])
    # Earlier releases found rules of combinations in a file with this name.
    old = module.with_name(f"{module.stem}_refusals.py") if module else None
    if old and old.is_file():
        return (
            f"{old}: is no longer read; move its rules to a method `refusals` of a "
            f"onecurve.Config, under {inside!r} of MODELS in {top}/config_models.py, and remove "
            "this file"
        )
    return None
