"""By which number the jobs are compared, and which way is better, from a job's configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..place import read_yaml


@dataclass(frozen=True)
class Objective:
    """A number that every job of the sweep is judged by."""

    name: str
    mode: str
    """"max" or "min"."""
    value: str = "last"
    """"last", or "best" of the run."""

    @property
    def sign(self) -> float:
        """What to multiply a value by, so that less is better."""
        return -1.0 if self.mode == "max" else 1.0


def of_job(run_dir: Path) -> list[Objective]:
    """The objectives in a job's config.yaml; empty if there is none that can be read."""
    config = read_yaml(run_dir / "config.yaml")
    if not isinstance(config, dict):
        return []
    sweep = config.get("sweep")
    sweep = sweep if isinstance(sweep, dict) else {}
    names = _listed(sweep.get("objective")) or _listed(config.get("monitor"))
    modes = _listed(sweep.get("direction")) or _listed(config.get("mode"))
    # One direction said for several objectives is meant for all of them.
    modes += modes[-1:] * (len(names) - len(modes))
    value = "best" if sweep.get("value") == "best" else "last"
    return [
        Objective(name, _mode(modes[index] if modes else "min"), value)
        for index, name in enumerate(names)
    ]


def _listed(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _mode(direction: str) -> str:
    # Optuna says maximize and minimize.
    return "max" if direction.lower().startswith("max") else "min"
