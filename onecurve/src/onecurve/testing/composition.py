"""Speeds up Hydra and OmegaConf in a test process that composes hundreds of configurations.

They read every file, parse every interpolation and copy constant objects again each time, which is
more than half of a short test. The results stay the same. Commands in other processes are not
affected.
"""

import copy
import io
from collections import defaultdict
from functools import cache
from typing import Any

import omegaconf._utils
import omegaconf.base
import pytest
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf
from omegaconf.base import Metadata
from omegaconf.grammar_parser import parse

from ..compat.of_hydra import ConfigLoaderImpl
from ..compat.of_hydra import defaults_list as defaults_lists


def speed_up(patch: pytest.MonkeyPatch) -> None:
    """Install the patches, until `patch` is undone."""
    # Hydra copies its repository for each group that --help lists.
    patch.setattr(ConfigLoaderImpl, "get_group_options", _listed)
    patch.setattr(ConfigLoaderImpl, "list_groups", _groups)
    # Hydra prepares interpolations for the defaults of each file, but few have any.
    patch.setattr(defaults_lists, "_create_interpolation_map", _map_if_needed)
    # Parse trees are not changed by their readers.
    parsed_once = cache(parse)
    patch.setattr(omegaconf.base, "parse", parsed_once)
    patch.setattr(omegaconf._utils, "parse", parsed_once)
    patch.setattr(OmegaConf, "load", _Loaded(OmegaConf.load))
    patch.setattr(Metadata, "__deepcopy__", _copied, raising=False)


def _listed(loader: Any, group_name: str, results_filter: Any = ObjectType.CONFIG) -> list[str]:
    found: list[str] = loader.repository.get_group_options(group_name, results_filter)
    return found


def _groups(loader: Any, parent_name: str) -> list[str]:
    return _listed(loader, parent_name, ObjectType.GROUP)


_create_interpolation_map = defaults_lists._create_interpolation_map


def _map_if_needed(overrides: Any, defaults: Any, self_added: bool) -> Any:
    if any(default.is_interpolation() for default in defaults):
        return _create_interpolation_map(overrides, defaults, self_added)
    return None


class _Loaded:
    """``OmegaConf.load`` with a cache by the text of an open file."""

    def __init__(self, load: Any) -> None:
        self.load = load
        self.known: dict[str, Any] = {}

    def __call__(self, file: Any) -> Any:
        if not hasattr(file, "read"):
            return self.load(file)
        text = file.read()
        if text not in self.known:
            self.known[text] = self.load(io.StringIO(text))
        return copy.deepcopy(self.known[text])


def _copied(metadata: Metadata, memo: dict[int, Any]) -> Metadata:
    """Copy metadata; only two of its fields can change."""
    new = object.__new__(type(metadata))
    new.__dict__.update(metadata.__dict__)
    new.flags = None if metadata.flags is None else dict(metadata.flags)
    new.resolver_cache = defaultdict(dict)
    new.resolver_cache.update(copy.deepcopy(dict(metadata.resolver_cache), memo))
    return new
