"""The newest complete checkpoint of a run, found without importing torch."""

from pathlib import Path
from typing import NamedTuple

from .file import INDEX, damage, is_sharded


class Found(NamedTuple):
    """A checkpoint to go on with."""

    file: Path | None
    passed_over: list[str]
    """Newer files that are not complete, each with what is wrong with it."""


def newest_checkpoint(run_dir: Path) -> Found:
    """The newest complete checkpoint of a run."""
    files = sorted(
        (run_dir / "checkpoints").glob("*.ckpt"),
        key=lambda path: _written(path).stat().st_mtime_ns,
        reverse=True,
    )
    passed_over: list[str] = []
    for file in files:
        reason = damage(file)
        if reason is None:
            return Found(file, passed_over)
        passed_over.append(f"{file.name}: {reason}")
    return Found(None, passed_over)


def _written(path: Path) -> Path:
    """What was written last of a checkpoint."""
    return path / INDEX if is_sharded(path) else path
