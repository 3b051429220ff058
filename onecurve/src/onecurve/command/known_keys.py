"""Which keys and parts a configuration has: all that are read, and none that nobody reads."""

import difflib
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from . import source
from .allowed import text
from .signatures import keywords
from .values import beside, dotted, types_beside

# What a run reads without asking whether it is there.
NEEDED = {
    "train": (
        *("task", "data", "model", "init", "optimizer", "scheduler", "trainer", "strategy"),
        *("launch", "paths", "seed", "monitor", "mode", "test", "resume", "checkpoint"),
    ),
    "parity": (
        *("task", "data", "trainer", "strategy", "launch", "paths", "parity"),
        *("seed", "monitor", "mode"),
    ),
    "plan": ("task", "data", "trainer", "plan", "paths", "seed"),
    "evaluate": ("checkpoint", "data", "trainer", "strategy", "launch", "paths"),
    "predict": ("checkpoint", "predict", "paths"),
}
# All keys of these, and some of others.
WHOLE = ("checkpoint", "launch", "parity", "paths", "plan", "predict")
PARTS = tuple(f"trainer.{name}" for name in ("accelerator", "devices", "num_nodes"))
PARTS += ("strategy.name", "strategy.processes")
# What is said of a part of the run, and not to it.
ABOUT = {"strategy": ("name", "processes")}


def wrong_parts(config: DictConfig, defaults: DictConfig, config_name: str) -> Iterator[str]:
    """Lines about parts that were taken away, and about keys that were added and mean nothing.

    Args:
        config: The composed configuration.
        defaults: The same choice of files, without overrides of single keys.
        config_name: Name of the primary configuration.
    """
    needed = NEEDED.get(config_name, ())
    inside = [f"{group}.{key}" for group in WHOLE for key in defaults.get(group) or ()]
    for name in (*needed, *inside, *PARTS):
        # Where a whole group is something else, that is said of the group.
        group = name.rpartition(".")[0]
        is_there = not group or group not in config or isinstance(config[group], DictConfig)
        if is_there and _has(defaults, name) and not _has(config, name):
            yield f"~{name}: a run needs it; leave ~{name} out"
    plain: Any = OmegaConf.to_container(config)
    usual: dict[str, Any] = dict(dotted(OmegaConf.to_container(defaults)))
    for key, node in dotted(plain):
        if _is_object(usual.get(key)) and isinstance(node, dict) and not _is_object(node):
            wanted = usual[f"{key}._target_"]
            yield f"{key}._target_ is needed: add {key}._target_={wanted}"
    for group in ("callbacks", "logger"):
        for name, entry in (plain.get(group) or {}).items():
            if entry and not _is_object(entry):
                yield (
                    f"{group}.{name}={text(entry)}: is no object; use one that there is instead, "
                    f"such as +{group}=NAME, or say of which class it is: "
                    f"+{group}.{name}._target_=..."
                )
    for key, node in dotted(plain):
        target = node.get("_target_") if isinstance(node, dict) else None
        if target is not None:
            yield from _wrong_target(key, target, node)
        elif isinstance(node, dict) and any(hasattr(each, "COMPLETE") for each in beside(key)):
            known = list(types_beside(key) | usual.get(key, {}))
            yield from (_unknown(key, name, known) for name in node if name not in known)


def _has(config: DictConfig, name: str) -> bool:
    """Whether there is such a key, be its value null."""
    group, _, key = name.rpartition(".")
    node = OmegaConf.select(config, group) if group else config
    return isinstance(node, DictConfig) and key in node


def _is_object(node: Any) -> bool:
    return isinstance(node, dict) and "_target_" in node


def _wrong_target(key: str, target: Any, node: dict[str, Any]) -> Iterator[str]:
    if not isinstance(target, str) or "." not in target:
        yield (
            f"{key}._target_={target}: must be the dotted name of a class or a function, such as "
            f"{key}._target_=my_package.my_module.MyClass"
        )
    elif missing := source.missing(target):
        yield f"{key}._target_={target}: {missing}"
    elif known := keywords(target):
        # Those of Hydra's begin with an underscore.
        own = [name for name in node if not (name.startswith("_") and name.endswith("_"))]
        # What is called with more than the configuration says is its author's affair.
        about = ABOUT.get(key, ())
        yield from (
            _unknown(key, name, known) for name in own if name not in known and name not in about
        )


def _unknown(group: str, name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    others = f"{group} has {', '.join(known[:5])}" if known else "leave it out"
    hint = f"did you mean {group}.{close[0]}?" if close else others
    return f"{group}.{name}: there is no such key; {hint}"
