"""Weights & Biases: the id by which Lightning's logger continues the run of a run directory."""

import re
from pathlib import Path


def earlier_run(save_dir: str | None) -> str | None:
    """The id of the newest run in a directory, which follows the time in its folder's name.

    A number follows it if two folders were created in one second.
    """
    # A run directory is not known yet when a configuration is validated.
    folders = sorted(each.name for each in Path(save_dir or "/", "wandb").glob("*run-*-*"))
    found = re.search(r"run-\d+_\d+-([^-]+)", folders[-1]) if folders else None
    return found[1] if found else None
