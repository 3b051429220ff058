"""The keys of a composed configuration, as they are typed, and their values."""

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


def refers(value: Any) -> bool:
    """Whether a value is another key's."""
    return isinstance(value, str) and "${" in value
