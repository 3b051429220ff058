"""The usual value of a key: what the chosen files have there, before single keys are overridden."""

from functools import cached_property
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf

from ..config.keys import dotted, refers, resolved
from .explain import choices


class Usual:
    """Usual values by key; None for a key that is null or not there.

    Args:
        config_name: Name of the primary configuration, such as "train".
        overrides: What was typed.
    """

    def __init__(self, config_name: str, overrides: list[Override]) -> None:
        self.config_name = config_name
        self.overrides = overrides
        self.loader: Any = GlobalHydra.instance().config_loader()

    def __call__(self, key: str) -> Any:
        """The value, from one file if that has it: to compose all of them takes long."""
        group, _, name = key.partition(".")
        choice = HydraConfig.get().runtime.choices.get(group) if name else None
        files = {f"{group}/{choice}": name} if isinstance(choice, str) else {}
        for file, inside in (files | {self.config_name: key}).items():
            loaded = self.loader.repository.load_config(file)
            if loaded is None or loaded.header["package"]:
                continue
            value = dict(dotted(OmegaConf.to_container(loaded.config))).get(inside)
            if value is not None and not refers(value):
                return value
        return self.all.get(key)

    def is_null(self, key: str) -> bool:
        """Whether the key is there, and null."""
        return key in self.all and self.all[key] is None

    @cached_property
    def all(self) -> dict[str, Any]:
        """Every key of the configuration with the same choice of files."""
        chosen = [
            override.input_line or ""
            for override in self.overrides
            # No group has a dot in its name.
            if "." not in override.key_or_group
            and choices(override.key_or_group)
            and not override.is_delete()
        ]
        try:
            config = self.loader.load_configuration(self.config_name, chosen, RunMode.RUN)
        except HydraException:
            # The choice of files only composes together with what was overridden.
            return {}
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        return dict(dotted(resolved(config, is_checked=False)))
