"""Which configurations may run: refused here, before torch is imported or a file is written.

Limits and refusals stand beside what they are about: `values.py` and `refusals.py` find them.
"""

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .. import machine
from ..errors import UserError, user_error_behind
from .refusals import refusals
from .values import check_values, dotted

_without_overrides: dict[tuple[str, ...], DictConfig] = {}
"""By choice of files, as most jobs of a sweep have the same."""


def check(config: DictConfig, config_name: str, overrides: list[str]) -> None:
    """Refuse what cannot run.

    Args:
        config: The composed configuration of one job, without Hydra's own part.
        config_name: Name of the primary configuration, such as "train".
        overrides: What was typed, such as ["strategy=ddp", "trainer.devices=2"].

    Raises:
        UserError: With the one line to show.
    """
    try:
        for key, value in dotted(OmegaConf.to_container(config)):
            if value == "???":
                raise UserError(f"{key} is needed: add {key}=...")
        check_values(config, _defaults(config_name, overrides))
        if "trainer" in config:
            if line := next(refusals(config), None):
                raise UserError(line)
        elif (ranks := machine.ranks_around()) and ranks.world_size > 1:
            raise UserError(
                f"{config_name}.py: is one process, but {ranks.starter} has started "
                f"{ranks.world_size}; type the command once without {ranks.starter}"
            )
    except OmegaConfBaseException as error:
        line = " ".join(str(error).split())
        raise user_error_behind(error) or UserError(line) from None


def _defaults(config_name: str, overrides: list[str]) -> DictConfig:
    """The configuration with the same choice of files, but no key overridden."""
    hydra = GlobalHydra.instance()
    loader = hydra.config_loader()
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    choices = [
        override.input_line or ""
        for override in parsed
        # No group has a dot in its name, and to look one up takes milliseconds.
        if "." not in override.key_or_group
        and loader.get_group_options(override.key_or_group)
        and not override.is_delete()
    ]
    key = (str(loader.get_search_path()), config_name, *choices)
    if key not in _without_overrides:
        try:
            config = loader.load_configuration(config_name, choices, RunMode.RUN)
        except HydraException:
            # The choice of files only composes together with what was overridden.
            return OmegaConf.create()
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        _without_overrides[key] = config
    return _without_overrides[key]
