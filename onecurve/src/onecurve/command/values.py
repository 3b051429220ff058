"""Checks values one by one: each is what its limit says, and of the same kind as its default."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from math import isnan
from pathlib import Path
from typing import Any, get_type_hints, is_typeddict

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from .. import configs
from ..errors import UserError
from .allowed import alternatives, as_meant, is_limit, refusal, text, typed
from .signatures import arguments

GROUPS = Path(configs.__file__).parent


def check_values(config: DictConfig, defaults: DictConfig) -> None:
    """Refuse the first value that cannot be right.

    Args:
        config: The composed configuration.
        defaults: The same choice of files, without overrides of single keys.

    Raises:
        UserError: Naming the key, the value, what is allowed and a value that works.
    """
    values = resolved(config)
    usual = dict(dotted(resolved(defaults, is_checked=False)))
    written = dict(dotted(OmegaConf.to_container(config)))
    limits = dict(limits_of(values))
    # What only refers to another key comes last: that one is named.
    for key, value in sorted(dotted(values), key=lambda item: _refers(written.get(item[0]))):
        # Null by default, or by reference: the run directory is not known yet, for example.
        if value is None and (usual.get(key) is None or isinstance(written.get(key), str)):
            continue
        # What is a group may not be null; an entry of one may, which takes it away.
        group = isinstance(usual.get(key), Mapping) and not ("." in key and value is None)
        if key in limits and not isinstance(usual.get(key), Mapping):
            if line := refusal(limits[key], key, value, usual.get(key)):
                raise UserError(line)
        elif key in usual and (group or value is not None) and not _same_kind(value, usual[key]):
            example = typed(key, usual[key])
            raise UserError(f"{key}={text(value)}: must be {_kind(usual[key])}, such as {example}")


def set_as_meant(config: DictConfig) -> None:
    """Make whole numbers and texts of what is typed as `1e3` or 88 where only such may stand."""
    values = resolved(config)
    limits = dict(limits_of(values))
    for key, value in dotted(values):
        if key in limits and repr(meant := as_meant(limits[key], value)) != repr(value):
            OmegaConf.update(config, key, meant)


def dotted(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a nested dictionary with its value, such as ("optimizer.lr", 0.001)."""
    for name, value in config.items():
        yield f"{prefix}{name}", value
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{name}.")


def beside(group: str) -> list[Any]:
    """The modules with limits of a group that has no `_target_`: they lie among its YAML files.

    Args:
        group: Such as "trainer"; the empty text stands for the keys that are in no group.
    """
    folder = GROUPS / group.replace(".", "/")
    package = f"{configs.__name__}.{group}".rstrip(".")
    names = sorted(file.stem for file in folder.glob("*limits.py"))
    return [import_module(f"{package}.{name}") for name in names]


def limits_of(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every key that has a limit, with its type."""
    for group, node in (("", config), *dotted(config)):
        if not isinstance(node, dict):
            continue
        target = node.get("_target_")
        types = arguments(target) if isinstance(target, str) else types_beside(group)
        for name, annotation in types.items():
            key = f"{group}.{name}".lstrip(".")
            value = node.get(name)
            if is_limit(annotation):
                yield key, annotation
            if isinstance(value, dict) and "_target_" not in value:
                for part in filter(is_typeddict, alternatives(annotation)):
                    for inner, limit in get_type_hints(part, include_extras=True).items():
                        yield f"{key}.{inner}", limit


@cache
def types_beside(group: str) -> dict[str, Any]:
    """The types of the keys of a group that has no `_target_`."""
    types: dict[str, Any] = {}
    for module in beside(group):
        types |= get_type_hints(module.Limits, include_extras=True)
    return types


def resolved(config: DictConfig, is_checked: bool = True) -> Any:
    """Plain containers with references followed, unless one leads to a value still missing.

    Args:
        config: A composed configuration.
        is_checked: Whether a reference that leads nowhere is an error. By default a key may have
            one, and be overridden.
    """
    try:
        return OmegaConf.to_container(config, resolve=True)
    except InterpolationToMissingValueError:
        return OmegaConf.to_container(config)
    except OmegaConfBaseException:
        if is_checked:
            raise
        return OmegaConf.to_container(config)


def _refers(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _same_kind(value: Any, usual: Any) -> bool:
    if isinstance(value, float) and isnan(value):
        return False
    # A text or null by default says nothing about what else may stand there ("auto" or 2).
    if usual is None or isinstance(usual, str):
        return not (isinstance(usual, str) and isinstance(value, Mapping))
    if isinstance(usual, bool) or isinstance(value, bool):
        return isinstance(usual, bool) and isinstance(value, bool)
    if isinstance(usual, int | float):
        # Where it is a whole number it may be one by chance.
        return isinstance(value, int | float)
    return isinstance(value, type(usual))


def _kind(usual: Any) -> str:
    if isinstance(usual, bool):
        return "true or false"
    if isinstance(usual, int | float):
        return "a number"
    if usual is None or isinstance(usual, str):
        return "a value"
    return "a list" if isinstance(usual, list) else "a mapping"
