"""Makes Python believe that the distributions in the variable HIDDEN are not installed."""

import os
import sys
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

# Distributions, and what is imported of them where that has another name.
HIDDEN = os.environ["HIDDEN"].split()
MODULES = {"hydra-core": "hydra", "pillow": "PIL", "scikit-learn": "sklearn"}
AWAY = {MODULES.get(name, name) for name in HIDDEN}


class Found(PathFinder):
    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if name.partition(".")[0] in AWAY else PathFinder.find_spec(name, path, target)


def _from_name(name: str) -> metadata.Distribution:
    if name.lower() in HIDDEN:
        raise metadata.PackageNotFoundError(name)
    return installed(name)


installed = metadata.Distribution.from_name
metadata.Distribution.from_name = _from_name  # type: ignore[assignment,method-assign]
sys.meta_path = [Found if finder is PathFinder else finder for finder in sys.meta_path]
