"""What `resume=last` continues: the training run of this project that was started last."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ..run.record import external_runs

RECORD = "environment.json"


def newest_run(runs: Path, task: str | None) -> Path | None:
    """The training run that was started last, by what the runs themselves say of it.

    Jobs of sweeps are left out: a sweep is resumed by its own command, one job by its
    directory.

    Args:
        runs: The project's folder of runs; they may lie in folders below it, and elsewhere if they
            are listed there.
        task: Only runs of this task; None for all.

    Returns:
        Its directory; None if there is none.
    """
    found = dict.fromkeys([*_run_directories(runs), *external_runs(runs)])
    for run_dir in sorted(found, key=_started, reverse=True):
        if _is_training(run_dir, task):
            return run_dir.resolve()
    return None


def _run_directories(runs: Path) -> Iterator[Path]:
    for folder, folders, _ in os.walk(runs):
        if ".hydra" in folders:
            yield Path(folder)
            folders.clear()


def _started(run_dir: Path) -> float:
    """When a run was started, or was resumed, in seconds since 1970; 0 if it never was."""
    file = run_dir / RECORD
    try:
        return float(json.loads(file.read_text())["started"])
    except (OSError, ValueError, TypeError, KeyError):
        # Of an earlier release, or cut short.
        return file.stat().st_mtime if file.is_file() else 0.0


def _is_training(run_dir: Path, task: str | None) -> bool:
    try:
        text = (run_dir / ".hydra/hydra.yaml").read_text()
        if "\n  mode: MULTIRUN\n" in text:
            return False
        hydra: dict[str, Any] = yaml.safe_load(text)["hydra"]
        choices = hydra["runtime"]["choices"]
        return hydra["job"]["config_name"] == "train" and task in (None, choices["task"])
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError):
        return False
