"""Names of checkpoints that would get into each other's way, and places where none can be."""

from collections.abc import Iterator
from pathlib import Path

from ..composed_run import ComposedRun
from .disk import cannot_be_made


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why these files cannot be written."""
    name = str(run.get(f"{key}.filename")).removesuffix(".ckpt")
    if name == "last" and run.get(f"{key}.save_last"):
        yield (
            f"{key}.filename=last: is the name of the newest state (save_last), which the best "
            f"weights would overwrite; use {key}.filename=best"
        )
    kept = run.get(f"{key}.save_top_k", 1)
    if kept not in (0, 1) and name not in ("best", "None") and "{" not in name:
        yield (
            f"{key}.save_top_k={kept}: files need names that differ, and {key}.filename={name} is "
            f"one name; use '{key}.filename=\"{name}-{{epoch}}-{{step}}\"', or {key}.filename=best"
        )
    folder = str(run.get(f"{key}.dirpath") or "")
    if folder and "://" not in folder and (reason := cannot_be_made(Path(folder))):
        yield (
            f"{key}.dirpath={folder}: cannot be made: {reason}; leave it out, or name a folder "
            f"that you may write to, such as {key}.dirpath=checkpoints"
        )
    if "://" in folder:
        yield (
            f"{key}.dirpath={folder}: checkpoints are written to a local disk, or to one that is "
            f"mounted; leave it out, or use {key}.dirpath=FOLDER"
        )
