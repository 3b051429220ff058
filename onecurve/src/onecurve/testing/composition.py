"""Makes Hydra compose faster in a process that composes hundreds of configurations.

Files and interpolations are parsed once, and constants are not copied, which saves more than half
of a short test; the result is the same. Commands in processes of their own are unchanged.
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
    """Cache what composing a configuration repeats, until the patch is undone."""
    # For each group that --help lists, all that is known would be copied.
    patch.setattr(ConfigLoaderImpl, "get_group_options", _listed)
    patch.setattr(ConfigLoaderImpl, "list_groups", _groups)
    # For each file, what the interpolations of its defaults could mean, of which few have one.
    patch.setattr(defaults_lists, "_create_interpolation_map", _map_if_needed)
    # Whoever reads a tree does not change it.
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
    """``OmegaConf.load``, by the text of a file that is open."""

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
    """A copy; only two of its fields can change."""
    new = object.__new__(type(metadata))
    new.__dict__.update(metadata.__dict__)
    new.flags = None if metadata.flags is None else dict(metadata.flags)
    new.resolver_cache = defaultdict(dict)
    new.resolver_cache.update(copy.deepcopy(dict(metadata.resolver_cache), memo))
    return new
