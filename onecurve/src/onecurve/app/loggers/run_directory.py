"""What trackers show of a run directory, and what continues a run there."""

import re
from pathlib import Path
from typing import Any

import yaml

LONGEST_NAME = 200
# What changes no curve.
LEFT_OUT = ("callbacks", "logger", "test", "hydra.run.dir")


def typed_in(run_dir: Path) -> list[str]:
    """The overrides of a run as they were typed; none outside of a run directory."""
    file = run_dir / ".hydra/overrides.yaml"
    return (yaml.safe_load(file.read_text()) or []) if file.is_file() else []


def config_of(run_dir: Path) -> dict[str, Any] | None:
    """The configuration of a run; None outside of a run directory."""
    file = run_dir / "config.yaml"
    return yaml.safe_load(file.read_text()) if file.is_file() else None


def overrides_of(run_dir: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The overrides of the command line by key; strategy and seed are always among them."""
    values: dict[str, Any] = {"strategy": config["strategy"]["name"], "seed": config["seed"]}
    for override in typed_in(run_dir):
        key, _, value = override.lstrip("+").partition("=")
        if key.startswith(("~", "paths", "resume")):
            continue
        # A group such as model=mlp, or a list, is shown as it was typed.
        resolved: Any = config
        for name in key.split("."):
            resolved = resolved.get(name) if isinstance(resolved, dict) else None
        values[key] = resolved if isinstance(resolved, bool | int | float) else value
    return values


def title_of(run_dir: Path) -> str:
    """A folder's name that shows the strategy and the overrides; "" outside of a run directory."""
    if (config := config_of(run_dir)) is None:
        return ""
    values = overrides_of(run_dir, config).items()
    words = ",".join(f"{key}={value}" for key, value in values if key not in LEFT_OUT)
    return re.sub(r"[^\w.,=+@~-]+", "_", words).strip("_")[:LONGEST_NAME].rstrip("-.,")


def earlier_run(save_dir: str | None) -> str | None:
    """The id of the newest run in a directory, which follows the time in its folder's name.

    A number follows it if two folders were created in one second.
    """
    # A run directory is not known yet when a configuration is validated.
    folders = sorted(each.name for each in Path(save_dir or "/", "wandb").glob("*run-*-*"))
    match = re.search(r"run-\d+_\d+-([^-]+)", folders[-1]) if folders else None
    return match[1] if match else None
