"""Which configurations may run: refused here, before torch is imported or a file is written.

`values.py` finds limits of single keys; rules of combinations are in `onecurve.config.rules`.
"""

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .. import machine
from ..errors import UserError, user_error_behind
from .allowed import text
from .explain import added_to_a_list, choices
from .known_keys import wrong_parts
from .monitors import unlogged_monitor
from .refusals import refusals
from .unused import leave_out, not_used, unused_groups
from .values import check_values, dotted, set_as_meant

_without_overrides: dict[tuple[str, ...], DictConfig] = {}
"""By choice of files, as most jobs of a sweep have the same."""


def check(config: DictConfig, config_name: str, overrides: list[str]) -> str | None:
    """Refuse what cannot run, and make of the rest what is meant.

    Args:
        config: The composed configuration of one job, without Hydra's own part. Groups that its
            task makes no use of are taken away, and `1e3` becomes 1000 where a whole number is
            meant.
        config_name: Name of the primary configuration, such as "train".
        overrides: What was typed, such as ["strategy=ddp", "trainer.devices=2"].

    Returns:
        A line about words that change nothing; None if there are none.

    Raises:
        UserError: With the one line to show.
    """
    try:
        unused = unused_groups(config)
        leave_out(config, unused)
        for key, value in dotted(OmegaConf.to_container(config)):
            if value == "???":
                raise UserError(f"{key} is needed: add {key}=...")
        defaults = _defaults(config_name, overrides).copy()
        leave_out(defaults, unused)
        _refuse_several(config_name, overrides)
        if line := added_to_a_list(overrides):
            raise UserError(line)
        for line in wrong_parts(config, defaults, config_name):
            raise UserError(line)
        check_values(config, defaults)
        _refuse_other_facts(config, defaults)
        line = None
        if "trainer" in config:
            line = next(refusals(config), None) or unlogged_monitor(config)
        if line:
            raise UserError(line)
        if "strategy" not in config and (ranks := machine.ranks_around()) and ranks.world_size > 1:
            raise UserError(
                f"{config_name}.py: is one process, but {ranks.starter} has started "
                f"{ranks.world_size}; type the command once without {ranks.starter}"
            )
        set_as_meant(config)
        return not_used(unused, overrides)
    except OmegaConfBaseException as error:
        raise in_one_line(error, config) from None


def in_one_line(error: OmegaConfBaseException, config: DictConfig) -> UserError:
    """What OmegaConf says of a value that refers to another."""
    if refusal := user_error_behind(error):
        return refusal
    lines = [line.strip() for line in str(error).splitlines()]
    keys = [line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")]
    if not keys or not keys[0]:
        return UserError(" ".join(lines))
    node = OmegaConf.to_container(config)
    written = dict(dotted(node)).get(keys[0]) if isinstance(node, dict) else None
    given = f"{keys[0]}={written}" if isinstance(written, str) else keys[0]
    return UserError(f"{given}: {lines[0]}; give a value, or the name of a key that is there")


def _refuse_several(config_name: str, overrides: list[str]) -> None:
    """A group of which one file is chosen takes one: Hydra would put several on top of another."""
    loader = GlobalHydra.instance().config_loader()
    primary = loader.repository.load_config(config_name)  # type: ignore[attr-defined]
    lists = {
        str(default.group)
        for default in primary.defaults_list or ()
        if hasattr(default, "group")
        if isinstance(default.value, list)
    }
    for override in OverridesParser.create(config_loader=loader).parse_overrides(overrides):
        value, group = override.value(), override.key_or_group
        if not isinstance(value, list) or "." in group or group in lists:
            continue
        if options := choices(group):
            one = next((str(each) for each in value if str(each) in options), options[0])
            raise UserError(f"{group}={text(value)}: takes one, such as {group}={one}")


def _refuse_other_facts(config: DictConfig, defaults: DictConfig) -> None:
    """What a strategy is called, and how many processes it is, is so and not chosen."""
    for name in ("strategy.name", "strategy.processes"):
        said, is_so = (OmegaConf.select(each, name) for each in (config, defaults))
        if is_so is not None and said != is_so:
            raise UserError(
                f"{name}={text(said)}: is {is_so} for this strategy, and not a choice; leave it "
                "out, or choose another, such as strategy=ddp"
            )


def _defaults(config_name: str, overrides: list[str]) -> DictConfig:
    """The configuration with the same choice of files, but no key overridden."""
    hydra = GlobalHydra.instance()
    loader = hydra.config_loader()
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    chosen = [
        override.input_line or ""
        for override in parsed
        # No group has a dot in its name.
        if "." not in override.key_or_group
        and choices(override.key_or_group)
        and not override.is_delete()
    ]
    key = (str(loader.get_search_path()), config_name, *chosen)
    if key not in _without_overrides:
        try:
            config = loader.load_configuration(config_name, chosen, RunMode.RUN)
        except HydraException:
            # The choice of files only composes together with what was overridden.
            return OmegaConf.create()
        OmegaConf.set_struct(config, False)
        config.pop("hydra")
        _without_overrides[key] = config
    return _without_overrides[key]
