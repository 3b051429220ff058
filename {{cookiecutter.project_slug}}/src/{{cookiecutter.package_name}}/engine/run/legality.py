"""Which configurations may run: refused here, before torch is imported or a file is written.

`RULES` is a table: each row is a combination of keys that cannot work, with the sentence that the
person at the keyboard sees. Values on their own are checked by `values.py`.
"""

import netrc
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ...errors import UserError, stop, user_error_behind
from . import machine
from .values import check_values, dotted


class Plan:
    """The facts that the rules are about. `config` is the composed configuration."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.strategy = str(config.strategy.name)
        self.one_process = config.strategy.processes == "one"
        self.accelerator = machine.accelerator(config.trainer, self.one_process)
        self.devices = machine.local_devices(config.trainer, self.one_process)
        self.num_nodes = int(config.trainer.num_nodes)
        self.world_size = self.devices * self.num_nodes
        self.most_devices = machine.most_devices(self.accelerator)

    def get(self, key: str, default: Any = None) -> Any:
        """A key that may be absent."""
        return OmegaConf.select(self.config, key, default=default)

    @property
    def monitors_validation(self) -> bool:
        """Whether a callback waits for a metric that only validation logs."""
        callbacks = self.get("callbacks") or {}
        monitors = [str(entry.get("monitor")) for entry in callbacks.values() if entry]
        return any(monitor.startswith("val/") for monitor in monitors)

    @property
    def wandb_has_key(self) -> bool:
        """Whether Weights & Biases can be reached without asking for a key."""
        if os.environ.get("WANDB_API_KEY"):
            return True
        try:
            return netrc.netrc().authenticators("api.wandb.ai") is not None
        except (OSError, netrc.NetrcParseError):
            return False


class Rule(NamedTuple):
    """A combination that cannot work."""

    broken: Callable[[Plan], bool]
    says: str
    """The refusal; fields in braces are attributes of the `Plan`."""


RULES: tuple[Rule, ...] = (
    Rule(
        lambda plan: plan.accelerator == "cuda" and plan.most_devices == 0,
        "trainer.accelerator={config.trainer.accelerator}: no GPU is visible here; "
        "use trainer.accelerator=cpu",
    ),
    Rule(
        lambda plan: plan.accelerator == "mps" and not (plan.one_process and plan.most_devices),
        "trainer.accelerator={config.trainer.accelerator}: Apple's GPU is for strategy=single on a "
        "Mac; use trainer.accelerator=cpu",
    ),
    Rule(
        lambda plan: plan.devices < 1,
        "trainer.devices={config.trainer.devices}: must be auto, a number from 1, or a list of GPU "
        "numbers, such as trainer.devices=2",
    ),
    Rule(
        lambda plan: plan.one_process and plan.devices > 1,
        "trainer.devices={config.trainer.devices}: strategy={strategy} uses one device; "
        "use trainer.devices=1, or strategy=ddp",
    ),
    Rule(
        lambda plan: plan.one_process and plan.num_nodes > 1,
        "trainer.num_nodes={num_nodes}: strategy={strategy} is one process on one node; "
        "use trainer.num_nodes=1, or strategy=ddp",
    ),
    Rule(
        lambda plan: plan.num_nodes > 1,
        "trainer.num_nodes={num_nodes}: runs are on one node so far; use trainer.num_nodes=1",
    ),
    Rule(
        lambda plan: machine.ranks_around() > 1,
        "strategy={strategy}: torchrun or srun started several ranks, but a run starts its own; "
        "type the command once, without them",
    ),
    Rule(
        lambda plan: plan.devices > plan.most_devices,
        "trainer.devices={config.trainer.devices}: at most {most_devices} for "
        "trainer.accelerator={accelerator} on this machine; use trainer.devices={most_devices}",
    ),
    Rule(
        lambda plan: (plan.get("data.batch_size") or plan.world_size) < plan.world_size,
        "data.batch_size={config.data.batch_size}: is shared by {world_size} ranks, so it must be "
        "at least that; use data.batch_size={world_size}, or fewer trainer.devices",
    ),
    Rule(
        lambda plan: (
            plan.accelerator == "cpu" and str(plan.get("trainer.precision")).startswith("16-")
        ),
        "trainer.precision={config.trainer.precision}: float16 needs a GPU; "
        "use trainer.precision=bf16-mixed on a CPU",
    ),
    Rule(
        lambda plan: plan.get("trainer.limit_val_batches") == 0 and plan.monitors_validation,
        "trainer.limit_val_batches=0: callbacks wait for monitor={config.monitor}, which only "
        "validation logs; add monitor=train/loss mode=min",
    ),
    Rule(
        lambda plan: _is_model(plan, "lenet") and plan.get("data.image_size") != 32,
        "data.image_size={config.data.image_size}: model=lenet reads 32x32 images; "
        "use data.image_size=32, or model=mlp",
    ),
    Rule(
        lambda plan: plan.get("model.weights") is not None and plan.get("init.weight") is not None,
        "model.weights={config.model.weights}: init would overwrite pretrained weights; "
        "use init=default, or model.weights=null",
    ),
    Rule(
        lambda plan: plan.get("logger.wandb.offline") is False and not plan.wandb_has_key,
        "logger.wandb.offline=false: there is no key for Weights & Biases; run `wandb login` or "
        "set WANDB_API_KEY, or use logger.wandb.offline=true",
    ),
)

# Keys that name what must be there already, and what to give instead.
ON_DISK = {
    "resume": "a checkpoint file, such as runs/.../checkpoints/last.ckpt, or leave it out",
    "checkpoint": "a checkpoint file, such as runs/.../checkpoints/best.ckpt",
    "predict.images": "an image, or a folder with images in it",
}


def _is_model(plan: Plan, name: str) -> bool:
    return str(plan.get("model._target_", "")).rsplit(".", 2)[-2:-1] == [name]


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
        for key, wanted in ON_DISK.items():
            path = OmegaConf.select(config, key)
            if path is not None and not Path(path).expanduser().exists():
                raise UserError(f"{key}={path}: there is no such file; give {wanted}")
        if "trainer" in config:
            plan = Plan(config)
            for rule in RULES:
                if rule.broken(plan):
                    raise UserError(rule.says.format(**vars(plan)))
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
        if loader.get_group_options(override.key_or_group) and not override.is_delete()
    ]
    try:
        config = loader.load_configuration(config_name, choices, RunMode.RUN)
    except HydraException:
        # The choice of files only composes together with what was overridden.
        return OmegaConf.create()
    OmegaConf.set_struct(config, False)
    config.pop("hydra")
    return config


class RefuseBeforeRun:
    """Hydra callback: checks a single run before Hydra makes its output directory.

    In a sweep each job checks itself, so that one that is refused does not keep the others from
    running.
    """

    def on_run_start(self, config: DictConfig, config_name: str, **kwargs: Any) -> None:
        """Hydra has composed the configuration and made nothing yet."""
        HydraConfig.instance().set_config(config)
        job = config.copy()
        OmegaConf.set_struct(job, False)
        job.pop("hydra")
        try:
            check(job, config_name, list(config.hydra.overrides.task))
        # Hydra turns an Exception of a callback into a warning; SystemExit ends the command.
        except UserError as error:
            stop(error)
        except Exception:
            traceback.print_exc()
            sys.exit(1)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Hydra calls every hook of a callback; the others do nothing here."""
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda **kwargs: None
