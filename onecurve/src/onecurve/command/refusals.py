"""Finds what refuses combinations of choices: files beside what was chosen, free of torch.

Of a group without `_target_` (trainer, launch, ...) that is its file of limits; of a class or a
function in `name.py`, and of the classes that it is derived from, `name_refusals.py`.
"""

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ..composed_run import ComposedRun
from .signatures import sources
from .values import beside, dotted

Refusals = Callable[[ComposedRun, str], Iterator[str]]


def refusals(config: DictConfig) -> Iterator[str]:
    """Why a configuration cannot run, line by line; none if it can."""
    run = ComposedRun(config)
    groups = [("", OmegaConf.to_container(config)), *dotted(OmegaConf.to_container(config))]
    nodes = {key: node for key, node in groups if isinstance(node, dict)}
    # Devices and ranks first: what is said of strategies takes them to be right.
    # Of devices that are only planned with, this machine says nothing.
    for key, node in nodes.items() if run.strategy else ():
        if "_target_" not in node:
            for module in beside(key):
                if refuse := getattr(module, "refusals", None):
                    yield from refuse(run, key)
    for key, node in nodes.items():
        if isinstance(node.get("_target_"), str):
            for source in sources(node["_target_"]):
                if refuse := _refusals_beside(source.name, source.file):
                    yield from refuse(run, key)


@cache
def _refusals_beside(module: str, file: Path) -> Refusals | None:
    path = file.with_name(f"{file.stem}_refusals.py")
    if not path.is_file():
        return None
    # By its path: to import it by name would import the packages that it is in, and maybe torch.
    spec = spec_from_file_location(f"{module}_refusals", path)
    assert spec is not None
    assert spec.loader is not None
    found: Any = module_from_spec(spec)
    spec.loader.exec_module(found)
    refuse: Refusals = found.refusals
    return refuse
