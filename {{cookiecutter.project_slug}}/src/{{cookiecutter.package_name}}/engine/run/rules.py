"""Combinations of choices that cannot work, as a table, without importing torch."""

import netrc
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from . import machine


class Plan:
    """The facts that the rules are about. `config` is the composed configuration."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.strategy = str(config.strategy.name)
        self.one_process = config.strategy.processes != "one per device"
        self.one_device = config.strategy.processes == "one"
        self.accelerator = machine.accelerator(config.trainer, self.one_device)
        self.devices = machine.local_devices(config.trainer, self.one_device)
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
        lambda plan: plan.accelerator == "mps" and not (plan.one_device and plan.most_devices),
        "trainer.accelerator={config.trainer.accelerator}: Apple's GPU is for strategy=single on a "
        "Mac; use trainer.accelerator=cpu",
    ),
    Rule(
        lambda plan: plan.devices < 1,
        "trainer.devices={config.trainer.devices}: must be auto, a number from 1, or a list of GPU "
        "numbers, such as trainer.devices=2",
    ),
    Rule(
        lambda plan: plan.one_device and plan.devices > 1,
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


def _is_model(plan: Plan, name: str) -> bool:
    return str(plan.get("model._target_", "")).rsplit(".", 2)[-2:-1] == [name]
