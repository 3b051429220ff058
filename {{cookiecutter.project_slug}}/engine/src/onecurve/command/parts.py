"""Which keys and parts a configuration has: all that are read, and none that nobody reads."""

import difflib
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from . import source
from .signatures import keywords
from .values import beside, dotted, types_beside

# What a run reads without asking whether it is there.
NEEDED = {
    "train": (
        *("task", "data", "model", "init", "optimizer", "scheduler", "trainer", "strategy"),
        *("launch", "paths", "seed", "monitor", "mode", "test", "resume", "checkpoint"),
    ),
    "evaluate": ("checkpoint", "data", "trainer", "strategy", "launch", "paths"),
    "predict": ("checkpoint", "predict", "paths"),
}


def wrong_parts(config: DictConfig, defaults: DictConfig, config_name: str) -> Iterator[str]:
    """Lines about parts that were taken away, and about keys that were added and mean nothing.

    Args:
        config: The composed configuration.
        defaults: The same choice of files, without overrides of single keys.
        config_name: Name of the primary configuration.
    """
    for name in NEEDED.get(config_name, ()):
        if name in defaults and name not in config:
            yield f"~{name}: a run needs it; leave ~{name} out"
    plain: Any = OmegaConf.to_container(config)
    for key, node in dotted(plain):
        target = node.get("_target_") if isinstance(node, dict) else None
        if target is not None:
            yield from _wrong_target(key, target, node)
        elif isinstance(node, dict) and any(hasattr(each, "COMPLETE") for each in beside(key)):
            known = types_beside(key)
            yield from (_unknown(key, name, list(known)) for name in node if name not in known)


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
        about = {"name", "processes"} if key == "strategy" else set()
        yield from (
            _unknown(key, name, known) for name in own if name not in known and name not in about
        )


def _unknown(group: str, name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 3) or known[:5]
    hint = (
        f"did you mean {' or '.join(f'{group}.{each}' for each in close)}?"
        if close
        else "leave it out"
    )
    return f"{group}.{name}: there is no such key; {hint}"
