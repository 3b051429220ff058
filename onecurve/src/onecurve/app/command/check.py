"""Validates the configuration of a job, before torch is imported or a file is written."""

from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ... import machine
from ...config_model import text
from ...errors import UserError
from ..config.validate import refusals, validate
from ..run.interpolation import dotted, in_one_line
from ..run.record import invocation, override
from ..run.stored import overrides_of, typed_secrets
from .explain import Chosen, choices, merged_by_nobody, no_mapping, replaced_by_one
from .resolvers import command_of

# Facts about a strategy, which cannot be overridden.
FACTS = ("strategy.name", "strategy.processes")


def check_run(config: DictConfig, config_name: str) -> str | None:
    """Reject a composed configuration that cannot run; what `check` changes, it has then.

    Returned are the lines of `check`, and one about secrets that were typed.
    """
    job = config.copy()
    OmegaConf.set_struct(job, False)
    job.pop("hydra")
    if "trials" in (OmegaConf.select(job, "sweep") or {}):
        raise UserError(
            "sweep=optuna: is for a sweep; add -m and a space, such as "
            "'optimizer.lr=tag(log, interval(1e-4, 1e-1))'"
        )
    overrides = overrides_of(config.hydra.overrides.task)
    lines = [check(job, config_name, overrides), typed_secrets(overrides)]
    with open_dict(config):
        config.merge_with(job)
    return "\n".join(filter(None, lines)) or None


def check(config: DictConfig, config_name: str, overrides: list[str]) -> str | None:
    """Reject the configuration of a job that cannot run.

    In place, `1e3` becomes 1000 where a whole number is meant. Returned is a line about an override
    that changes more than was meant.
    """
    loader = GlobalHydra.instance().config_loader()
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)

    chosen = Chosen(config_name, overrides)
    try:
        plain: Any = OmegaConf.to_container(config)
        for key, value in dotted(plain):
            if value == "???":
                raise UserError(f"{key} is needed: add {_example(key, config)}")
        _reject_overrides(parsed, chosen)
        if line := merged_by_nobody(chosen):
            raise UserError(line)
        for group, choice in HydraConfig.get().runtime.choices.items():
            if isinstance(plain.get(group), list):
                raise UserError(no_mapping(f"{group}/{choice}"))
        described = validate(config, config_name, lambda: chosen.values)
        if "trainer" in config and (line := next(refusals(config, described), None)):
            raise UserError(line)
        if "strategy" not in config and (ranks := machine.ranks_around()) and ranks.world_size > 1:
            raise UserError(
                f"{command_of(config_name)}: is one process, but {ranks.starter} has started "
                f"{ranks.world_size}; type the command once without {ranks.starter}"
            )
        return replaced_by_one(chosen)
    except OmegaConfBaseException as error:
        raise in_one_line(error, config) from None


def _example(key: str, config: DictConfig) -> str:
    """An override for a key that is needed; for a checkpoint the best of the newest run."""
    if key not in ("checkpoint", "init.file"):
        return f"{key}=..."
    files = Path(config.paths.runs).rglob("checkpoints/*.ckpt")
    by_run = sorted((each.parent.stat().st_mtime, each.name == "best.ckpt", each) for each in files)
    path = invocation().short(by_run[-1][-1]) if by_run else "runs/.../checkpoints/best.ckpt"
    return override(key, path)


def _reject_overrides(parsed: list[Override], chosen: Chosen) -> None:
    """Reject several files for a group that takes one, which Hydra would merge, and a fact."""
    for each in parsed:
        value: Any = each.value()
        key = each.key_or_group
        is_list = isinstance(value, list) and "." not in key and key not in chosen.lists
        if is_list and (options := choices(key)):
            one = next((str(name) for name in value if str(name) in options), options[0])
            raise UserError(f"{key}={text(value)}: takes one, such as {key}={one}")
        if key == "paths.run":
            instead = f"leave it out, or use {override('hydra.run.dir', text(value))}"
            raise UserError(f"{key}={text(value)}: is the run directory; {instead}")
        if key in FACTS and (fact := chosen.values.get(key)) not in (None, value):
            raise UserError(
                f"{key}={text(value)}: is {fact} for this strategy, and not a choice; leave it "
                "out, or choose another, such as strategy=ddp"
            )
