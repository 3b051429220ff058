"""Applies the rules of combinations to what was chosen: the library's, and a project's own.

A project has its own in `name_refusals.py`, beside the `name.py` of a class or a function.
"""

from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ..composed_run import ComposedRun
from ..config.rules import OF_GROUPS, OF_MODULES, Rule
from .signatures import sources
from .values import dotted


def refusals(config: DictConfig) -> Iterator[str]:
    """Why a configuration cannot run, line by line; none if it can."""
    run = ComposedRun(config)
    groups = [("", OmegaConf.to_container(config)), *dotted(OmegaConf.to_container(config))]
    nodes = {key: node for key, node in groups if isinstance(node, dict)}
    # Devices and ranks first: what is said of strategies takes them to be right.
    # Of devices that are only planned with, this machine says nothing.
    for key, rule in OF_GROUPS.items() if run.strategy else ():
        if key in nodes:
            yield from rule(run, key)
    for key, node in nodes.items():
        if isinstance(node.get("_target_"), str):
            for source in sources(node["_target_"]):
                rule_of = OF_MODULES.get(source.name) or _own(source.name, source.file)
                if rule_of is not None:
                    yield from rule_of(run, key)


@cache
def _own(module: str, file: Path) -> Rule | None:
    path = file.with_name(f"{file.stem}_refusals.py")
    if not path.is_file():
        return None
    # By its path: to import it by name would import the packages that it is in, and maybe torch.
    spec = spec_from_file_location(f"{module}_refusals", path)
    assert spec is not None
    assert spec.loader is not None
    found: Any = module_from_spec(spec)
    spec.loader.exec_module(found)
    own: Rule = found.refusals
    return own
