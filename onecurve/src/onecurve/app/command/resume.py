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
from pathlib import Path
from typing import TYPE_CHECKING

from ...checkpoint.file import is_sharded, newest_checkpoint
from ...checkpoint.remote import DIRPATH, bring_last, folder_of, is_address
from ...errors import UserError
from ..loggers.run_directory import config_of, typed_in
from ..run.record import OVERRIDES, parsed, quoted, reject_locked, text_of

if TYPE_CHECKING:
    from ...compat.of_hydra import Application

ADDRESSES = ("resume", "checkpoint", DIRPATH, "init", "init.file")


def expand(hydra: "Application", overrides: list[str], is_sweep: bool) -> list[str]:
    """Replace `resume=` and `init=FILE` by the overrides that they stand for."""
    overrides = [each for override in overrides for each in _init(_quoted_path(override))]
    resumes = [override for override in overrides if override.startswith("resume=")]
    if not resumes or hydra.config_name != "train":
        return overrides
    value = text_of(resumes[-1]) or resumes[-1].partition("=")[2]
    others = [override for override in overrides if override not in resumes]
    if value == "last":
        run_dir = _newest_run(hydra, others)
    elif os.path.isdir(os.path.expanduser(value)) and not is_sharded(Path(value).expanduser()):
        run_dir = Path(value).expanduser().resolve()
    else:
        return overrides
    if is_sweep:
        raise UserError(
            f"resume={value}: a run is resumed by itself, not in a sweep; leave out -m, or give "
            "a file: resume=runs/.../checkpoints/last.ckpt"
        )
    return _in_place(value, run_dir, others)


def _in_place(value: str, run_dir: Path, overrides: list[str]) -> list[str]:
    if not (run_dir / OVERRIDES).is_file():
        raise UserError(
            f"resume={value}: is not the directory of a training run (it has no {OVERRIDES}); give "
            "one, such as resume=runs/DATE/TIME"
        )
    reject_locked(run_dir, f"resume={value}")
    stored, config = typed_in(run_dir), config_of(run_dir) or {}
    address = folder_of(config)
    if address and "job" in (config.get("sweep") or {}):
        # A job of a sweep has a folder below the address of the sweep.
        stored = [word for word in stored if key_of(word) != DIRPATH]
        stored.append(f"{DIRPATH}={quoted(address)}")
    changes = {key_of(word) for word in overrides} | {"resume", "hydra.run.dir"}
    # A job of a sweep is resumed as a run of its own.
    earlier = [
        word
        for word in stored
        if key_of(word) not in changes and not key_of(word).startswith("sweep")
    ]
    # What was added to the configuration with a plus is changed without one.
    added = {key_of(word) for word in stored if word.startswith("+")}
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


def _newest_run(hydra: "Application", overrides: list[str]) -> Path:
    """The directory of the training run that was started last, anywhere below `paths.runs`.

    Jobs of sweeps are left out: a sweep is resumed by its own command, one job by its directory.
    """
    places = [override for override in overrides if override.startswith(("paths.", "paths="))]
    runs = Path(os.path.abspath(hydra.compose(places).paths.runs))
    training = [folder.parent for folder in runs.rglob(".hydra") if _is_training(folder.parent)]
    if not training:
        raise UserError(
            f"resume=last: there is no training run in {runs} to resume; leave it out, or give a "
            "run directory or a checkpoint file"
        )
    return max(training, key=_started).resolve()


def _started(run_dir: Path) -> float:
    """When a run was started, or was resumed, in seconds since 1970; 0 if it never was."""
    try:
        return float(json.loads((run_dir / "environment.json").read_text())["started"])
    except (OSError, ValueError, TypeError, KeyError):  # damaged
        return 0.0


def _is_training(run_dir: Path) -> bool:
    """Whether a directory is that of a run of train.py, and of no job of a sweep."""
    try:
        text = (run_dir / ".hydra/hydra.yaml").read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return "\n  mode: MULTIRUN\n" not in text and "\n    config_name: train\n" in text


def _init(override: str) -> list[str]:
    """`init=FILE` is short for `init=weights init.file=FILE`."""
    name, _, value = override.partition("=")
    if name != "init":
        return [override]
    value = text_of(override) or value
    # No choice of a group looks like a path.
    is_path = value.startswith(("/", "./", "../", "~")) or value.endswith((".ckpt", ".pt", ".pth"))
    is_file = is_path or is_address(value) or os.path.isfile(value)
    return ["init=weights", f"init.file={quoted(value)}"] if is_file else [override]


def _quoted_path(override: str) -> str:
    """Quote a path that exists for Hydra, whatever characters it has."""
    name, _, value = override.partition("=")
    is_plain = parsed(override) is not None and not any(sign in value for sign in "=,")
    if is_plain or text_of(override) is not None:
        return override
    # One address, and not several with commas between them.
    is_one = name in ADDRESSES and is_address(value) and value.count("://") == 1
    if is_one or os.path.exists(os.path.expanduser(value)):
        return f"{name}={quoted(value)}"
    return override


def key_of(override: str) -> str:
    """The group or the key of an override."""
    return override.partition("=")[0].lstrip("+~")
