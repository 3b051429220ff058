"""Makes Python believe that only the library's own dependencies are installed, no extra's."""

import sys
from importlib import metadata
from typing import Any

# What they are called when they are installed, and when they are imported.
EXTRAS = {
    "hydra-core": "hydra",
    "matplotlib": "matplotlib",
    "omegaconf": "omegaconf",
    "optuna": "optuna",
    "pillow": "PIL",
    "plotly": "plotly",
    "tensorboard": "tensorboard",
    "torchvision": "torchvision",
    "wandb": "wandb",
}


class NotInstalled:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in EXTRAS.values():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _from_name(name: str) -> metadata.Distribution:
    if name.lower() in EXTRAS:
        raise metadata.PackageNotFoundError(name)
    return installed(name)


installed = metadata.Distribution.from_name
metadata.Distribution.from_name = _from_name  # type: ignore[assignment,method-assign]
sys.meta_path.insert(0, NotInstalled)  # type: ignore[arg-type]
