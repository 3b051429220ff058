"""The configuration of the chosen files, before single keys are overridden."""

from functools import cached_property
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf

from ..config.validate import dotted, refers, resolved


def choices(group: str) -> list[str]:
    """The choices of a group, from all config sources.

    Hydra's own loader copies its whole state first, which is slower than reading a file.
    """
    found: list[str] = _loader().repository.get_group_options(group, ObjectType.CONFIG)
    return found


class Chosen:
    """Keys that there are, and their defaults: with the overrides that choose files alone."""

    def __init__(self, config_name: str, overrides: list[str]) -> None:
        self.config_name = config_name
        self.overrides = overrides

    def default(self, key: str) -> Any:
        """The default of a key; None if it is null or missing.

        It is read from a single file where possible, as composing all of them is slow.
        """
        group, _, name = key.partition(".")
        choice = HydraConfig.get().runtime.choices.get(group) if name else None
        files = {f"{group}/{choice}": name} if isinstance(choice, str) else {}
        for file, inside in (files | {self.config_name: key}).items():
            loaded = _loader().repository.load_config(file)
            if loaded is None or loaded.header["package"]:
                continue
            value = dict(dotted(OmegaConf.to_container(loaded.config))).get(inside)
            if value is not None and not refers(value):
                return value
        return self.values.get(key)

    def is_null(self, key: str) -> bool:
        """Whether the key exists and is null."""
        return key in self.values and self.values[key] is None

    @cached_property
    def keys(self) -> list[str]:
        """Every group, and every dotted key."""
        groups = _loader().repository.get_group_options("", ObjectType.GROUP)
        return list(dict.fromkeys([*(name for name in groups if name != "hydra"), *self.values]))

    @cached_property
    def values(self) -> dict[str, Any]:
        """The default of every dotted key."""
        words = {word: word.partition("=")[0].lstrip("+") for word in self.overrides}
        # No group has a dot in its name.
        chosen = [word for word, key in words.items() if "." not in key and choices(key)]
        try:
            return self._composed(chosen)
        except HydraException:
            # A sweep chooses several, and some files compose only with what was overridden.
            return self._composed([])

    def choices_with(self, key: str) -> list[str]:
        """Other choices of the group that have this key, those with the fewest keys first."""
        group, _, name = key.partition(".")
        name = name.partition(".")[0]
        if not name or f"{group}.{name}" in self.values:
            return []
        found = {}
        for choice in choices(group):
            loaded = _loader().repository.load_config(f"{group}/{choice}")
            if loaded is not None and name in loaded.config:
                found[choice] = len(list(loaded.config))
        return sorted(found, key=lambda choice: found[choice])

    def _composed(self, chosen: list[str]) -> dict[str, Any]:
        config = _loader().load_configuration(self.config_name, chosen, RunMode.RUN)
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        return dict(dotted(resolved(config, is_checked=False)))


def _loader() -> Any:
    return GlobalHydra.instance().config_loader()
