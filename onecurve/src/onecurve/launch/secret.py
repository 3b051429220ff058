"""What the nodes of a run share and strangers do not know, if anything was given."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

SHORTEST = 16


def secret_of(config: "DictConfig") -> str | None:
    """`launch.secret`, or what `launch.secret_file` holds; None without both.

    Args:
        config: What Hydra composed.
    """
    if file := config.launch.get("secret_file"):
        try:
            return Path(file).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""
    secret = config.launch.get("secret")
    return None if secret is None else str(secret)
