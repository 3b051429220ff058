"""Where a sweep is, which sweep a directory holds, and how far that is."""

import hashlib
import json
from pathlib import Path
from typing import IO, Any

import yaml
from omegaconf import DictConfig, OmegaConf

from .. import lock
from ..config.keys import dotted
from ..errors import UserError
from ..run import hidden
from ..run.directory import refuse_remote
from .objective import metrics

RECORD = "sweep.yaml"
# In the directory of a job that failed.
TRACEBACK = "failure.txt"
# Marks a search that has all its trials.
COMPLETE = "complete"
# Keeps jobs from starting, once one has failed and sweep.on_failure=stop.
STOPPED = "stopped"
# A job with one of these needs nothing more.
DONE = {"finished", "diverged", "pruned"}
# What may differ when a sweep is gone on with: how it is gone through, and where it is.
FREE = ("sweep.", "sweep/", "hydra.", "+hydra.", "~hydra.", "paths.")
# Of the keys of a search those that may not.
FIXED = ("objective", "direction", "value", "space")
# The C parser is ten times faster, and there may be hundreds of jobs.
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_lock: IO[str] | None = None
"""Held while this process works on a sweep."""


def identity(config: DictConfig, config_name: str, jobs: list[list[str]] | None) -> dict[str, Any]:
    """What makes a sweep this one and no other, wherever and however it is gone through."""
    content: Any = OmegaConf.to_container(config)
    for name in ("hydra", "paths"):
        content.pop(name, None)
    search = content.pop("sweep", {})
    words = hidden.typed(config.hydra.overrides.task)
    typed = [word for word in words if not word.startswith(FREE)]
    kept = {key: search[key] for key in FIXED if key in search}
    if kept:
        content["sweep"] = kept
    found = {"config_name": config_name, "typed": sorted(typed), "config": content, "jobs": jobs}
    text = json.dumps(found, default=str).encode()
    return {**found, "fingerprint": f"sha256 {hashlib.sha256(text).hexdigest()}"}


def sweep_directory(config: DictConfig, record: dict[str, Any]) -> Path:
    """Where the sweep is, or is to be; this process's from now on, unless it is a search.

    Raises:
        UserError: If the directory that was typed belongs to another sweep.
    """
    global _lock
    new = Path(str(config.hydra.sweep.dir)).resolve()
    refuse_remote(new, f"hydra.sweep.dir={config.hydra.sweep.dir}")
    named = any("hydra.sweep.dir=" in str(word) for word in config.hydra.overrides.hydra)
    resumes = bool(OmegaConf.select(config, "sweep.resume"))
    if named:
        earlier = read_record(new)
        if earlier and not resumes:
            raise UserError(
                f"hydra.sweep.dir={config.hydra.sweep.dir}: holds a sweep, and sweep.resume=false "
                "does not go on with it; give another directory, or use sweep.resume=true"
            )
        if earlier and earlier.get("fingerprint") != record["fingerprint"]:
            raise UserError(
                f"hydra.sweep.dir={config.hydra.sweep.dir}: holds a sweep of another "
                f"configuration ({_difference(earlier, record)}); give another directory"
            )
        _lock = lock.take(new / ".lock") if record["jobs"] is not None else None
        if record["jobs"] is not None and _lock is None:
            raise UserError(
                f"hydra.sweep.dir={config.hydra.sweep.dir}: another process is at work on this "
                "sweep; wait for it, or give another directory"
            )
        return new
    if resumes:
        for old in sorted(new.parent.parent.glob("*/*-sweep"), reverse=True):
            if _is_unfinished(old, record) and (_lock := lock.take(old / ".lock")):
                return old
    _lock = lock.take(new / ".lock")
    return new


def _is_unfinished(directory: Path, record: dict[str, Any]) -> bool:
    """Whether a directory holds this very sweep, cut short."""
    try:
        text = (directory / RECORD).read_text()
    except OSError:
        return False
    if f"fingerprint: {record['fingerprint']}\n" not in text:
        return False
    if record["jobs"] is None:
        return not (directory / COMPLETE).exists()
    found = [job_dir(directory, number) for number in range(len(record["jobs"]))]
    return not all(path and metrics(path).get("status") in DONE for path in found)


def _difference(earlier: dict[str, Any], now: dict[str, Any]) -> str:
    there, here = dict(dotted(earlier.get("config", {}))), dict(dotted(now["config"]))
    for key in dict.fromkeys([*there, *here]):
        # What is in a group tells more than the group.
        if not any(isinstance(each.get(key), dict) and each[key] for each in (there, here)):
            old_value, new_value = _shown(there, key), _shown(here, key)
            if old_value != new_value:
                return f"{key} is {old_value} there, {new_value} here"
    old, new = set(earlier.get("typed", [])), set(now["typed"])
    gone, added = (" ".join(sorted(words)) or "nothing" for words in (old - new, new - old))
    return f"there {gone}, here {added}" if old != new else "the values that are swept are others"


def _shown(values: dict[str, Any], key: str) -> str:
    """A value as the fingerprint has it, so that null, an empty text and no key can be told."""
    return json.dumps(values[key], default=str) if key in values else "not set"


def read_record(directory: Path) -> dict[str, Any]:
    """sweep.yaml of a sweep; empty if it has none."""
    content = read_yaml(directory / RECORD)
    return content if isinstance(content, dict) else {}


def read_yaml(path: Path) -> Any:
    """What a YAML file holds; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return yaml.load(file, Loader)
    except (OSError, ValueError, yaml.YAMLError):
        return None


def job_dir(directory: Path, number: int) -> Path | None:
    """The directory of a job, by its number from 0; None if it has none yet."""
    label = f"{number + 1:02}"
    found = [directory / label, *directory.glob(f"{label}-*")]
    return next((path for path in found if path.is_dir()), None)
