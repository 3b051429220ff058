"""Expands `resume=` and `init=` on the command line before Hydra parses it.

- ``resume=last``, the newest run, and ``resume=RUN_DIR`` continue in place: the overrides of
  that run, with those given now on top, in its directory, from its newest complete checkpoint.
- ``resume=FILE`` is a new run that resumes from a checkpoint.
- ``init=FILE`` is a new run that starts from the weights of a checkpoint.
- An address, such as ``resume=s3://bucket/run``, stands for a file that is fetched later.

torch is not imported.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir

from ...checkpoint.file import is_sharded, newest_checkpoint
from ...checkpoint.remote import DIRPATH, bring_last, folder_of, is_address
from ...errors import UserError
from ..run.record import parsed, quoted, reject_locked, text_of

ADDRESSES = ("resume", "checkpoint", DIRPATH, "init", "init.file")
SWEEP_FLAGS = ("-m", "--multirun")


def expand(arguments: list[str], config_dir: Path, config_name: str) -> list[str]:
    """Replace `resume=` and `init=FILE` in a command line by the overrides that they stand for."""
    arguments = [override for argument in arguments for override in _init(_quoted_path(argument))]
    resumes = [argument for argument in arguments if argument.startswith("resume=")]
    if not resumes or config_name != "train":
        return arguments
    value = text_of(resumes[-1]) or _value(resumes[-1])
    others = [argument for argument in arguments if argument not in resumes]
    if value == "last":
        run_dir = _newest_run(others, config_dir, config_name)
    elif os.path.isdir(os.path.expanduser(value)) and not is_sharded(Path(value).expanduser()):
        run_dir = Path(value).expanduser().resolve()
    else:
        return arguments
    if any(flag in others for flag in SWEEP_FLAGS):
        raise UserError(
            f"resume={value}: a run is resumed by itself, not in a sweep; leave out -m, or give "
            "a file: resume=runs/.../checkpoints/last.ckpt"
        )
    return _in_place(value, run_dir, others)


def _in_place(value: str, run_dir: Path, overrides: list[str]) -> list[str]:
    file = run_dir / ".hydra" / "overrides.yaml"
    if not file.is_file():
        raise UserError(
            f"resume={value}: is not the directory of a training run (it has no "
            ".hydra/overrides.yaml); give one, such as resume=runs/DATE/TIME"
        )
    reject_locked(run_dir, f"resume={value}")
    names = {_key(argument) for argument in overrides} | {"resume", "hydra.run.dir"}
    stored: list[str] = yaml.safe_load(file.read_text()) or []
    earlier = [
        override
        for override in stored
        # A job of a sweep is resumed as a run of its own.
        if _key(override) not in names and not _key(override).startswith("sweep")
    ]
    stored_config = run_dir / "config.yaml"
    config = yaml.safe_load(stored_config.read_text()) if stored_config.is_file() else {}
    address = folder_of(config)
    if address and "job" in (config.get("sweep") or {}) and DIRPATH not in names:
        # A job of a sweep has a folder below the address of the sweep.
        earlier = [word for word in earlier if _key(word) != DIRPATH]
        earlier.append(f"{DIRPATH}={quoted(address)}")
    # What was added to the configuration with a plus is changed without one.
    added = {_key(override) for override in stored if override.startswith("+")}
    changed = [f"+{word}" if word.partition("=")[0] in added else word for word in overrides]
    if address:
        bring_last(f"resume={value}: {DIRPATH}", address, run_dir)
    newest, passed_over = newest_checkpoint(run_dir)
    for reason in passed_over:
        print(f"resume: skipped {reason}")
    where = f"from {newest.name}" if newest else "from the start: it has no checkpoint yet"
    print(f"resume: continuing {run_dir} {where}")
    if overrides:
        print(f"resume: changed now: {' '.join(overrides)}")
    checkpoint = [f"resume={quoted(newest)}"] if newest else []
    return [*earlier, *changed, *checkpoint, f"hydra.run.dir={quoted(run_dir)}"]


def _newest_run(overrides: list[str], config_dir: Path, config_name: str) -> Path:
    """The directory of the training run that was started last, of `task=` if that is given.

    Runs are in folders below that of the project's runs. Jobs of sweeps are left out: a sweep is
    resumed by its own command, one job by its directory.
    """
    places = [argument for argument in overrides if argument.startswith(("paths.", "paths="))]
    with initialize_config_dir(str(config_dir.resolve()), version_base="1.3"):
        runs = Path(os.path.abspath(compose(config_name, places).paths.runs))
    tasks = [_value(argument) for argument in overrides if argument.startswith("task=")]
    for run_dir in sorted(_run_directories(runs), key=_started, reverse=True):
        if _is_training(run_dir, tasks[-1] if tasks else None):
            return run_dir.resolve()
    of_task = f" of task={tasks[-1]}" if tasks else ""
    raise UserError(
        f"resume=last: there is no training run{of_task} in {runs} to resume; leave it out, "
        "or give a run directory or a checkpoint file"
    )


def _run_directories(runs: Path) -> Iterator[Path]:
    for folder, folders, _ in os.walk(runs):
        if ".hydra" in folders:
            yield Path(folder)
            folders.clear()


def _started(run_dir: Path) -> float:
    """When a run was started, or was resumed, in seconds since 1970; 0 if it never was."""
    file = run_dir / "environment.json"
    try:
        return float(json.loads(file.read_text())["started"])
    except (OSError, ValueError, TypeError, KeyError):
        # Of an earlier release, or truncated.
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


def _init(argument: str) -> list[str]:
    """`init=FILE` is short for `init=weights init.file=FILE`."""
    name, _, value = argument.partition("=")
    if name != "init":
        return [argument]
    value = text_of(argument) or value
    # No choice of a group looks like a path.
    is_path = value.startswith(("/", "./", "../", "~")) or is_address(value)
    is_file = is_path or value.endswith((".ckpt", ".pt", ".pth")) or os.path.isfile(value)
    if not is_file:
        return [argument]
    return ["init=weights", f"init.file={quoted(value)}"]


def _quoted_path(argument: str) -> str:
    """Quote a path that exists for Hydra, whatever characters it has."""
    name, _, value = argument.partition("=")
    is_plain = parsed(argument) is not None and not any(sign in value for sign in "=,")
    if is_plain or text_of(argument) is not None:
        return argument
    # One address, and not several with commas between them.
    is_one = name in ADDRESSES and is_address(value) and value.count("://") == 1
    if is_one or os.path.exists(os.path.expanduser(value)):
        return f"{name}={quoted(value)}"
    return argument


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _value(override: str) -> str:
    return override.partition("=")[2]
