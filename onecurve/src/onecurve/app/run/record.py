"""The run directory: its lock, the files that describe a run, and the command that started it.

The files are config.yaml, environment.json and metrics.json; logs, metrics.csv and checkpoints are
written by others. An override in a printed command is quoted twice: for Hydra's grammar, and then
for the shell.
"""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from ... import machine
from ...checkpoint.remote import is_address
from ...errors import UserError
from .stored import STORED

LOCK = ".lock"
# Names the process, in a file of its own: on Windows a locked file cannot be written.
HOLDER = ".holder"
OVERRIDES = ".hydra/overrides.yaml"
PACKAGES = ("torch", "torchvision", "lightning", "hydra-core", "torchmetrics", "numpy", "wandb")


def start(run_dir: Path, config: dict[str, Any]) -> None:
    """Write config.yaml and environment.json, and metrics.json with the status "running"."""
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text(
        yaml.safe_dump(config[STORED], sort_keys=False, allow_unicode=True)
    )
    _write_json(run_dir / "environment.json", _environment(config))
    _write_json(run_dir / "metrics.json", {"status": "running"})


def finished(run_dir: Path, facts: dict[str, Any], status: str = "finished") -> None:
    """Write the final metrics.json: final metrics by name, and strategy, world_size, and so on."""
    _write_json(run_dir / "metrics.json", {"status": status, **facts})


def unfinished(run_dir: Path, interrupted: bool = False, error: str | None = None) -> None:
    """Write to metrics.json that the run failed and why, or that it was interrupted.

    A run that has ended keeps its status: what fails later, such as printing, is no failure of it.
    """
    if read_metrics(run_dir).get("status") not in (None, "running", "failed", "interrupted"):
        return
    why = {"stopped" if interrupted else "error": error} if error else {}
    finished(run_dir, why, "interrupted" if interrupted else "failed")


def change_status(run_dir: Path, status: str, error: str) -> None:
    """Change the status of a finished run, such as to "diverged", with the reason."""
    finished(run_dir, read_metrics(run_dir) | {"status": status, "error": error})


def read_metrics(run_dir: Path) -> dict[str, Any]:
    """metrics.json of a run; empty if there is none, or if it is damaged."""
    try:
        content = json.loads((run_dir / "metrics.json").read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def rejected(run_dir: Path, was_empty: bool, error: str) -> None:
    """Remove the directory of a run that was rejected before it did anything.

    One that had files before the run is kept, and one in which the run had begun says why it ended.
    """
    begun = any((run_dir / name).exists() for name in ("metrics.csv", "checkpoints", "nan.pt"))
    if begun or not was_empty:
        unfinished(run_dir, error=error)
        return
    shutil.rmtree(run_dir)
    with suppress(OSError):  # not empty
        for folder in run_dir.parents[:2]:
            folder.rmdir()


def restore_overrides(locked: "LockedDirectory") -> None:
    """Restore the overrides of a resumed run that failed before it trained or saved anything.

    Otherwise an override that cannot work would be part of every later `resume=last`.
    """
    file = locked.run_dir / OVERRIDES
    if _size(locked.run_dir / "metrics.csv") > locked.logged:
        return
    saved = (locked.run_dir / "checkpoints").rglob("*")
    if locked.overrides and all(each.stat().st_mtime < file.stat().st_mtime for each in saved):
        file.write_bytes(locked.overrides)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _environment(config: dict[str, Any]) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):  # an optional one
            versions[name] = metadata.version(name)
    return {
        "started": time.time(),
        "command": [sys.executable, *sys.argv],
        "directory": str(invocation().directory),
        "seed": config.get("seed"),
        "git": _git_state(),
        "versions": versions,
        "devices": {
            "machine": platform.platform(),
            "cores": machine.count_cores(),
            "gpus": machine.count_gpus(),
        },
    }


def _git_state() -> dict[str, Any] | None:
    command = ["git", "status", "--porcelain=v2", "--branch"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    about = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    changed = any(not line.startswith("# ") for line in lines)
    commit, branch = about["branch.oid"], about["branch.head"]
    return {"commit": commit, "branch": branch, "uncommitted_changes": changed}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    unfinished = path.with_suffix(".json.new")
    unfinished.write_text(json.dumps(content, indent=2) + "\n")
    unfinished.replace(path)


# The lock


class LockedDirectory(NamedTuple):
    """A run directory that is locked until its lock is released, or until this process ends."""

    run_dir: Path
    lock: FileLock
    was_empty: bool
    overrides: bytes | None  # the file of an earlier run
    logged: int  # the size of its metrics.csv


def try_lock(path: Path) -> FileLock | None:
    """Lock a file until the result is released, or this process ends; None if it is locked.

    Processes that this one forks, such as workers of a loader, do not hold the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


def lock_run(run_dir: Path) -> FileLock | None:
    """Lock a run directory, and name this process in it; None if it is locked."""
    lock = try_lock(run_dir / LOCK)
    if lock is not None:
        (run_dir / HOLDER).write_text(f"process {os.getpid()} on {platform.node()}\n")
    return lock


def lock_directory(run_dir: Path, override: str) -> LockedDirectory:
    """Create a run directory and lock it; errors begin with the override that asked for it."""
    reject_remote(run_dir, override)
    with creating(override):
        was_empty = not run_dir.exists() or not any(run_dir.iterdir())
        lock = lock_run(run_dir)
    if lock is None:
        raise _in_use(run_dir, override)
    file = run_dir / OVERRIDES
    overrides = file.read_bytes() if file.is_file() else None
    return LockedDirectory(run_dir, lock, was_empty, overrides, _size(run_dir / "metrics.csv"))


@contextmanager
def creating(override: str) -> Iterator[None]:
    """Reports why a directory cannot be created, beginning with the override that asked for it."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{override}: cannot be created: {error.strerror}; name a folder that you may "
            "write to, such as paths.runs=runs"
        ) from None


def reject_remote(run_dir: Path, override: str) -> None:
    """Reject an address: a local folder of that name would be created."""
    if re.search(r"(^|/)\w\w+:/", str(run_dir)):
        raise UserError(
            f"{override}: a run directory must be on a local or a mounted disk; use "
            f"{override.partition('=')[0]}=runs/NAME, and copy it when the run has ended"
        )


def reject_locked(run_dir: Path, override: str) -> None:
    """Reject a run directory that another process has locked, and name the process."""
    if not (run_dir / LOCK).exists():
        return
    with suppress(OSError):  # somebody else's, or on a disk that can only be read
        lock = try_lock(run_dir / LOCK)
        if lock is None:
            raise _in_use(run_dir, override)
        lock.release()


def _in_use(run_dir: Path, override: str) -> UserError:
    holder = run_dir / HOLDER
    who = holder.read_text().strip() if holder.exists() else "another process"
    return UserError(
        f"{override}: {who} is using {run_dir}; wait until it ends, or stop it, then run the same "
        "command again"
    )


# The command of a run, and commands and paths that are printed for the user to copy


class Invocation(NamedTuple):
    """A script, and the directory in which it was called."""

    directory: Path
    script: str  # as it was typed, such as "train.py" or "../train.py"

    def short(self, path: str | Path) -> str:
        """A path as it is printed: relative to the directory if it is in there."""
        if is_address(path):
            return str(path)
        path = Path(os.path.abspath(path))
        is_inside = path.is_relative_to(self.directory)
        return str(path.relative_to(self.directory) if is_inside else path)

    def command(self, script: str, *overrides: str) -> str:
        """A command line for a shell: a script beside this one, with overrides."""
        path = self.short((self.directory / self.script).with_name(script))
        return shlex.join(["python", path, *overrides])


def invocation() -> Invocation:
    """That of this process; Hydra may have changed the directory since."""
    is_run = HydraConfig.initialized()
    return Invocation(Path(HydraConfig.get().runtime.cwd if is_run else os.getcwd()), sys.argv[0])


def invocation_of(run_dir: Path) -> Invocation:
    """That of a run, from its record."""
    record = run_dir / "environment.json"
    if not record.is_file():
        return invocation()
    environment = json.loads(record.read_text())
    return Invocation(Path(environment["directory"]), environment["command"][1])


def override(key: str, value: str | Path) -> str:
    """An override with a text, in quotes if Hydra would read something else without them."""
    text = str(value)
    is_plain = "${" not in text and text_of(f"{key}={text}") == text
    return f"{key}={text if is_plain else quoted(text)}"


def quoted(value: str | Path) -> str:
    """A text, or a path, quoted for Hydra's grammar and OmegaConf's interpolation."""
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", str(value))
    # Double quotes where possible: the shell's are single.
    return QuotedString(text, Quote.single if '"' in text else Quote.double).with_quotes()


def text_of(word: str) -> str | None:
    """The text that Hydra reads in an override; None if it is no text, or no override."""
    found = parsed(word)
    value = None if found is None or found.is_sweep_override() else found.value()
    if not isinstance(value, str):
        return None
    return re.sub(r"(\\*)\\\$\{", lambda match: match[1][1::2] + "${", value)


def parsed(word: str) -> Override | None:
    """An override, parsed by Hydra; None if it cannot be parsed."""
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException:
        return None
