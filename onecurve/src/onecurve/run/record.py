"""The files that a run leaves in its directory besides logs, metrics.csv and checkpoints."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from .. import machine
from . import elsewhere, hidden
from .to_type import typed_here

PACKAGES = ("torch", "torchvision", "lightning", "hydra-core", "torchmetrics", "numpy", "wandb")


def start(run_dir: Path, config: dict[str, Any]) -> None:
    """Write config.yaml and environment.json, and metrics.json with the status "running"."""
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text(
        yaml.safe_dump(hidden.stored(config), sort_keys=False, allow_unicode=True)
    )
    _write_json(
        run_dir / "environment.json", hidden.hide(_environment(config), hidden.secrets(config))
    )
    runs, is_job = (config.get("paths") or {}).get("runs"), "job" in (config.get("sweep") or {})
    if runs and not is_job:
        elsewhere.note(run_dir, Path(os.path.abspath(runs)))
    _write_json(run_dir / "metrics.json", {"status": "running"})


def finished(run_dir: Path, facts: dict[str, Any], status: str = "finished") -> None:
    """Write the final metrics.json. Rank 0 of the run calls this.

    Args:
        run_dir: The run directory.
        status: "finished", or how else training ended for good.
        facts: Final metrics by name, and strategy, world_size, global_step, seconds,
            samples_per_second.
    """
    _write_json(run_dir / "metrics.json", {"status": status, **facts})


def unfinished(run_dir: Path, interrupted: bool = False, error: str | None = None) -> None:
    """Say in metrics.json that the run failed and why, or that somebody stopped it.

    An outcome stays: what fails after it, such as printing it, is no failure of the run.
    """
    if _status(run_dir) not in (None, "running", "failed", "interrupted"):
        return
    why = {"stopped" if interrupted else "error": error} if error else {}
    status = "interrupted" if interrupted else "failed"
    _write_json(run_dir / "metrics.json", {"status": status, **why})


def ended_otherwise(run_dir: Path, status: str, error: str) -> None:
    """Give a finished run another status: "diverged" with what shows it."""
    path = run_dir / "metrics.json"
    facts = json.loads(path.read_text())
    _write_json(path, {**facts, "status": status, "error": error})


def refused(run_dir: Path, was_empty: bool, runs: str | None, error: str | None = None) -> None:
    """Remove the directory of a run that was refused before it did anything.

    Not one in which there was something before the run: that may be anybody's.

    Args:
        run_dir: The run directory.
        was_empty: Whether there was nothing in it before the run.
        runs: The project's folder of runs, if it has one.
        error: Why, for the record of a run that had begun.
    """
    begun = any((run_dir / name).exists() for name in ("metrics.csv", "checkpoints", "nan.pt"))
    if begun or not was_empty:
        unfinished(run_dir, error=error)
        return
    shutil.rmtree(run_dir)
    if runs:
        elsewhere.forget(run_dir, Path(os.path.abspath(runs)))
    for parent in run_dir.parents[:2]:
        try:
            parent.rmdir()
        except OSError:
            break


def _environment(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "started": time.time(),
        "command": [sys.executable, *sys.argv],
        "directory": str(typed_here().directory),
        "seed": config.get("seed"),
        "git": _git_state(),
        "versions": {"python": platform.python_version()}
        | {name: version for name in PACKAGES if (version := _version(name))},
        "devices": {
            "machine": platform.platform(),
            "cores": machine.count_cores(),
            "gpus": machine.count_gpus(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # a run need not have it
        return None


def _git_state() -> dict[str, Any] | None:
    """Commit, branch and whether there are uncommitted changes; None outside a repository."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {
        "commit": commit,
        "branch": _git("rev-parse", "--abbrev-ref", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain")),
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _status(run_dir: Path) -> str | None:
    """What metrics.json says of the run so far; None if there is none."""
    path = run_dir / "metrics.json"
    status: str | None = json.loads(path.read_text())["status"] if path.exists() else None
    return status


def _write_json(path: Path, content: dict[str, Any]) -> None:
    unfinished = path.with_suffix(".json.new")
    unfinished.write_text(json.dumps(content, indent=2) + "\n")
    unfinished.replace(path)
