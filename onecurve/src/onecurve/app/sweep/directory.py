"""The directory of a sweep: what identifies the sweep, who works on it, which jobs are done."""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock
from omegaconf import DictConfig, OmegaConf

from ...errors import UserError
from ..run.record import read_metrics, reject_remote, try_lock
from ..run.stored import overrides_of

RECORD = "sweep.yaml"
TRACEBACK = "failure.txt"  # in the directory of a failed job
COMPLETE = "complete"  # marks a search that has all its trials
# Keeps further jobs from starting: a job failed with sweep.on_failure=stop, or Ctrl-C was pressed.
STOPPED = "stopped"
DONE = {"finished", "diverged", "pruned"}  # a job with one of these statuses is not run again
# Overrides that may change when a sweep is resumed: how its jobs are run, and where.
NOT_IDENTIFYING = ("sweep.", "sweep/", "hydra.", "+hydra.", "~hydra.", "paths.")
# The keys of a search that may not.
SEARCH_IDENTITY = ("objective", "direction", "space")
# The C parser is ten times faster, and there may be hundreds of jobs.
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def identity(config: DictConfig, script: str, jobs: list[list[str]] | None) -> dict[str, Any]:
    """What identifies a sweep, however and wherever its jobs run; a search has no `jobs` yet."""
    content: Any = OmegaConf.to_container(config)
    for name in ("hydra", "paths"):
        content.pop(name, None)
    search = content.pop("sweep", {})
    if kept := {key: search[key] for key in SEARCH_IDENTITY if key in search}:
        content["sweep"] = kept
    overrides = overrides_of(config.hydra.overrides.task)
    typed = sorted(word for word in overrides if not word.startswith(NOT_IDENTIFYING))
    facts = {"script": script, "typed": typed, "config": content, "jobs": jobs}
    text = json.dumps(facts, default=str).encode()
    return {**facts, "fingerprint": f"sha256 {hashlib.sha256(text).hexdigest()}"}


def choose_directory(config: DictConfig, record: dict[str, Any]) -> tuple[Path, FileLock]:
    """The directory of a new sweep, or that of an unfinished one to resume, and its lock.

    The lock keeps other commands from resuming the sweep as long as it is referenced.
    """
    new = Path(str(config.hydra.sweep.dir)).resolve()
    key = f"hydra.sweep.dir={config.hydra.sweep.dir}"
    reject_remote(new, key)
    is_named = any("hydra.sweep.dir=" in str(word) for word in config.hydra.overrides.hydra)
    if not is_named and config.sweep.resume:
        for old in sorted(new.parent.parent.glob("*/*-sweep"), reverse=True):
            if _is_unfinished(old, record) and (lock := try_lock(old / ".lock")):
                return old, lock
    if earlier := read_record(new):
        if not config.sweep.resume:
            raise UserError(f"{key}: holds a sweep; use sweep.resume=true, or another directory")
        if earlier.get("fingerprint") != record["fingerprint"]:
            raise UserError(
                f"{key}: holds another sweep, which is that of {earlier.get('command')} with the "
                f"configuration in {RECORD} there; give another directory"
            )
    if lock := try_lock(new / ".lock"):
        return new, lock
    raise UserError(
        f"{key}: another process is running this sweep; wait for it, or give another directory"
    )


def _is_unfinished(directory: Path, record: dict[str, Any]) -> bool:
    if read_record(directory).get("fingerprint") != record["fingerprint"]:
        return False
    if record["jobs"] is None:
        return not (directory / COMPLETE).exists()
    return jobs_done(directory) < len(record["jobs"])


def jobs_done(directory: Path) -> int:
    """How many jobs of a sweep are done, and not run again."""
    runs = directory.glob("*/.hydra")
    return sum(read_metrics(path.parent).get("status") in DONE for path in runs)


def read_record(directory: Path) -> dict[str, Any]:
    """sweep.yaml of a sweep; empty if it has none."""
    content = read_yaml(directory / RECORD)
    return content if isinstance(content, dict) else {}


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return yaml.load(file, Loader)
    except (OSError, ValueError, yaml.YAMLError):
        return None
