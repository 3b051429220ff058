"""Keys of a configuration that refer to others, resolved; and its dotted keys."""

from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from ...errors import UserError, user_error_behind

# Groups of which a task may take none: the first two become its network.
OF_A_TASK = {
    "model": "network",
    "init": "network",
    "optimizer": "optimizer",
    "scheduler": "scheduler",
}


def dotted(config: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Every key of a nested dictionary with its value, such as ("optimizer.lr", 0.001)."""
    found = []
    for name, value in config.items():
        found.append((f"{prefix}{name}", value))
        if value and isinstance(value, dict):
            found += dotted(value, f"{prefix}{name}.")
    return found


def resolved(config: DictConfig) -> dict[str, Any]:
    """Plain containers with interpolations resolved.

    A group of which a task may take none stays as it is where it refers to a key that is not there:
    an error when it is built.
    """
    plain: dict[str, Any] = {}
    for name in config:
        try:
            value = config[name]
            is_plain = not OmegaConf.is_config(value)
            plain[str(name)] = value if is_plain else OmegaConf.to_container(value, resolve=True)
        except InterpolationKeyError:
            if name not in OF_A_TASK:
                raise
            plain[str(name)] = OmegaConf.to_container(config[name])
    return plain


def in_one_line(error: OmegaConfBaseException, config: DictConfig | None = None) -> UserError:
    """An error of OmegaConf's about an interpolation, as one line."""
    if behind := user_error_behind(error):
        return behind
    lines = [line.strip() for line in str(error).splitlines()]
    keys = [line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")]
    if not keys or not keys[0]:
        return UserError(" ".join(lines))
    node = OmegaConf.to_container(config) if config is not None else None
    written = dict(dotted(node)).get(keys[0]) if isinstance(node, dict) else None
    given = f"{keys[0]}={written}" if isinstance(written, str) else keys[0]
    return UserError(f"{given}: {lines[0]}; give a value, or the name of a key that is there")
