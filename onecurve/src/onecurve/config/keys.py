"""Dotted keys of a composed configuration, and their values."""

from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException


def dotted(config: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Every key of a nested dictionary with its value, such as ("optimizer.lr", 0.001)."""
    found = []
    for name, value in config.items():
        found.append((f"{prefix}{name}", value))
        if value and isinstance(value, dict):
            found += dotted(value, f"{prefix}{name}.")
    return found


def resolved(config: DictConfig, is_checked: bool = True) -> Any:
    """Plain containers with interpolations resolved, unless one refers to a missing value.

    One that cannot be resolved is an error, unless keys may still be overridden (`is_checked`).
    """
    try:
        return OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        if is_checked and not isinstance(error, InterpolationToMissingValueError):
            raise
        return OmegaConf.to_container(config)


def refers(value: Any) -> bool:
    """Whether a value is an interpolation of another key."""
    return isinstance(value, str) and "${" in value
