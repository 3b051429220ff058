"""Weights & Biases; a run that is resumed in its directory continues its run there."""

import re
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger


class SameRunWandbLogger(WandbLogger):
    """Lightning's WandbLogger, which continues an earlier run in its directory.

    Steps after the checkpoint that a run resumes from are logged again, with the same values under
    the same ``trainer/global_step``.
    """

    def __init__(self, save_dir: str = ".", version: str | None = None, **options: Any) -> None:
        earlier = version or earlier_run(save_dir)
        self.goes_on = earlier is not None
        super().__init__(save_dir=save_dir, version=earlier, **options)


def earlier_run(save_dir: str) -> str | None:
    """The id of the newest run in a directory, which follows the time in its folder's name.

    A number follows it if two folders were created in one second.
    """
    folders = sorted(path.name for path in Path(save_dir, "wandb").glob("*run-*-*"))
    found = re.search(r"run-\d+_\d+-([^-]+)", folders[-1]) if folders else None
    return found[1] if found else None
