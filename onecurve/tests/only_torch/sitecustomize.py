"""Makes Python find what torch and Lightning bring, and nothing else of what the library uses."""

import sys
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

# What they are called when they are installed, and when they are imported.
OTHERS = {
    "hydra-core": "hydra",
    "matplotlib": "matplotlib",
    "omegaconf": "omegaconf",
    "pillow": "PIL",
    "pydantic": "pydantic",
    "rich": "rich",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "tensorboard": "tensorboard",
    "torchvision": "torchvision",
}


class Found(PathFinder):
    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] in OTHERS.values():
            return None
        return PathFinder.find_spec(name, path, target)


def _from_name(name: str) -> metadata.Distribution:
    if name.lower() in OTHERS:
        raise metadata.PackageNotFoundError(name)
    return installed(name)


installed = metadata.Distribution.from_name
metadata.Distribution.from_name = _from_name  # type: ignore[assignment,method-assign]
sys.meta_path = [Found if finder is PathFinder else finder for finder in sys.meta_path]
