"""Combinations of choices that cannot work, as a table, without importing torch."""

import netrc
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from .. import machine
from ..launch.addresses import is_host_and_port, rendezvous

BETTER = {
    "min": {"loss", "error", "mse", "mae", "rmse", "perplexity", "seconds"},
    "max": {"acc", "accuracy", "auroc", "f1", "iou", "precision", "recall", "samples_per_second"},
}


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
        self.ranks = machine.ranks_around()
        # What one node ignores may be left over in its environment.
        self.rendezvous = rendezvous(config) if self.num_nodes > 1 and not self.ranks else None
        self.world_size = self.devices * self.num_nodes
        self.most_devices = machine.most_devices(self.accelerator)
        self.replicas = int(config.strategy.get("replicas", 1))
        self.batch_size = self.get("data.batch_size")
        # How many parts a global batch is cut into.
        self.shares = 1 if self.one_process else self.world_size
        if self.strategy == "pipeline":
            self.shares = self.replicas

        self.better = _better(str(self.get("monitor")).rpartition("/")[2])

    def get(self, key: str, default: Any = None) -> Any:
        """A key that may be absent."""
        return OmegaConf.select(self.config, key, default=default)

    def has(self, callback: str) -> bool:
        """Whether a callback is chosen."""
        return bool(self.get(f"callbacks.{callback}"))

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
        lambda plan: plan.ranks is not None and plan.one_process and plan.ranks.world_size > 1,
        "strategy={strategy}: is one process, but {ranks.starter} has started "
        "{ranks.world_size}; type the command once without it, or use strategy=ddp",
    ),
    Rule(
        lambda plan: plan.ranks is not None and plan.config.launch.rendezvous is not None,
        "launch.rendezvous={config.launch.rendezvous}: {ranks.starter} has started the ranks, "
        "which meet by themselves; use launch.rendezvous=null",
    ),
    Rule(
        lambda plan: plan.ranks is not None and plan.num_nodes != plan.ranks.nodes,
        "trainer.num_nodes={num_nodes}: {ranks.starter} has started {ranks.world_size} ranks, "
        "{ranks.on_this_node} of them here; use trainer.num_nodes={ranks.nodes}",
    ),
    Rule(
        lambda plan: plan.ranks is not None and plan.devices != plan.ranks.on_this_node,
        "trainer.devices={config.trainer.devices}: {ranks.starter} has started "
        "{ranks.on_this_node} ranks on this node; use trainer.devices=auto",
    ),
    Rule(
        lambda plan: plan.ranks is None and plan.num_nodes > 1 and plan.rendezvous is None,
        "trainer.num_nodes={num_nodes}: the nodes need a place to meet; add "
        "launch.rendezvous=HOST:PORT, where HOST is one of them, to the same command on every node",
    ),
    Rule(
        lambda plan: plan.num_nodes == 1 and plan.config.launch.rendezvous is not None,
        "launch.rendezvous={config.launch.rendezvous}: one node has nobody to meet; add "
        "trainer.num_nodes=2, or use launch.rendezvous=null",
    ),
    Rule(
        lambda plan: plan.rendezvous is not None and not is_host_and_port(plan.rendezvous),
        "launch.rendezvous={rendezvous}: must be HOST:PORT with a port from 1 to 65535, such as "
        "launch.rendezvous=10.0.0.1:29500",
    ),
    Rule(
        lambda plan: plan.devices > plan.most_devices,
        "trainer.devices={config.trainer.devices}: at most {most_devices} for "
        "trainer.accelerator={accelerator} on this machine; use trainer.devices={most_devices}",
    ),
    Rule(
        lambda plan: plan.world_size % plan.replicas != 0,
        "strategy.replicas={replicas}: must divide the {world_size} ranks, such as "
        "strategy.replicas=1",
    ),
    Rule(
        lambda plan: plan.batch_size is not None and plan.batch_size < plan.shares,
        "data.batch_size={batch_size}: is shared by {shares} ranks, so it must be at least that; "
        "use data.batch_size={shares}, or fewer trainer.devices",
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
        lambda plan: plan.better not in (None, plan.get("mode")),
        "mode={config.mode}: monitor={config.monitor} is better the other way; use mode={better}",
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


def _better(name: str) -> str | None:
    """Which way a metric of a well-known name is better: "min" or "max"."""
    return next((direction for direction, names in BETTER.items() if name in names), None)


def _is_model(plan: Plan, name: str) -> bool:
    return str(plan.get("model._target_", "")).rsplit(".", 2)[-2:-1] == [name]


def pipeline_refusal(plan: Plan) -> str | None:
    """Why a schedule cannot run as asked; None if it can, and for other strategies."""
    if plan.strategy != "pipeline":
        return None
    # Here, so that a project without the pipeline's folder runs.
    from ..strategies.pipeline.limits import SCHEDULES, nearest, takes

    strategy = plan.config.strategy
    schedule, microbatches = strategy.schedule, strategy.microbatches
    ranks = plan.world_size // plan.replicas
    limits = SCHEDULES[schedule]
    if plan.get("trainer.sync_batchnorm"):
        return (
            "trainer.sync_batchnorm=true: a pipeline takes BatchNorm's statistics over each "
            "micro-batch; use trainer.sync_batchnorm=false, or strategy=ddp"
        )
    if limits.fixed and strategy.stages_per_rank not in ("auto", limits.stages_per_rank):
        return (
            f"strategy.stages_per_rank={strategy.stages_per_rank}: strategy.schedule={schedule} "
            f"has {limits.stages_per_rank}; use strategy.stages_per_rank=auto, or "
            "strategy.schedule=interleaved_1f1b"
        )
    share = (plan.batch_size or microbatches * plan.replicas) // plan.replicas
    if microbatches > share:
        return (
            f"strategy.microbatches={microbatches}: a pipeline has {share} samples of a batch; "
            f"use strategy.microbatches={nearest(schedule, share, ranks, share)}"
        )
    if not takes(schedule, microbatches, ranks):
        wanted = nearest(schedule, microbatches, ranks, share)
        return (
            f"strategy.microbatches={microbatches}: strategy.schedule={schedule} on {ranks} ranks "
            f"cannot take that; use strategy.microbatches={wanted}, or strategy.schedule=gpipe"
        )
    if isinstance(strategy.balance, str) and strategy.balance != "auto":
        return (
            f"strategy.balance={strategy.balance}: must be auto, or a list of the number of layers "
            "of each stage, such as strategy.balance=[7,7]"
        )
    return None
