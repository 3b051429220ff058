"""Small functions that the YAML files call: ``${len:...}``, ``${numbered:...}``, ..."""

import os
import re
from collections.abc import Sized
from pathlib import Path

from omegaconf import OmegaConf

from ..errors import UserError

LONGEST_NAME = 120


def numbered(count: int) -> list[str]:
    """Names for `count` classes that have none: "0", "1", ..."""
    return [str(number) for number in range(count)]


def class_folders(root: str) -> list[str]:
    """Names of an image folder's class folders: those in root/train if it exists, else in root.

    Raises:
        UserError: If there is no such folder, or no folder in it.
    """
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"data.root={root}: no such folder; give one folder of images a class, "
            "for example data.root=photos with photos/cat/ and photos/dog/, or use data=digits"
        )
    folder = folder / "train" if (folder / "train").is_dir() else folder
    names = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith(".")
    )
    if not names:
        raise UserError(
            f"data.root={root}: no class folder in it; give one folder of images a class, "
            "for example photos/cat/ and photos/dog/, or use data=digits"
        )
    return names


def length(values: Sized) -> int:
    """Number of entries."""
    return len(values)


def job_directory(number: int, overrides: str) -> str:
    """Name of the directory of a sweep's job, such as "03-optimizer.lr=0.01,strategy=ddp".

    Args:
        number: The job's number, from 0.
        overrides: What varies, as Hydra's `hydra.job.override_dirname` has it.
    """
    short = re.sub(r"\d\.\d{6,}", lambda number: f"{float(number[0]):.5g}", overrides)
    name = re.sub(r"[^\w.,=+@~-]+", "_", re.sub("['\"]", "", short)).strip("_")
    return f"{number + 1:02}-{name}"[:LONGEST_NAME].rstrip("-.")


def register_resolvers() -> None:
    """Make the functions known to OmegaConf. Needed before a configuration is read."""
    OmegaConf.register_new_resolver("len", length, replace=True)
    OmegaConf.register_new_resolver("numbered", numbered, replace=True)
    OmegaConf.register_new_resolver("class_folders", class_folders, replace=True)
    OmegaConf.register_new_resolver("cwd", os.getcwd, replace=True)
    OmegaConf.register_new_resolver("job_directory", job_directory, replace=True)
