"""The facts about a run that rules of combinations (`Config.refusals`) use, without torch."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from .. import machine


class ComposedRun:
    """A run with a composed configuration that has not started yet."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        # Empty for a command without one, such as `onecurve plan`.
        self.strategy = str(self.get("strategy.name", ""))
        processes = self.get("strategy.processes", "one")
        self.one_process = processes != "one per device"
        self.one_device = processes == "one"
        self.accelerator = machine.accelerator(config.trainer, self.one_device)
        # On this node; 0 for an invalid value.
        self.devices = machine.local_devices(config.trainer, self.one_device)
        self.most_devices = machine.most_devices(self.accelerator)
        self.num_nodes = machine.num_nodes(config.trainer)
        self.world_size = self.devices * self.num_nodes
        self.ranks = machine.ranks_around()  # None if it was not started by torchrun or srun
        self.node = machine.node_around()  # under Kubeflow
        # Samples of a training step over all ranks; None without training.
        self.batch_size: int | None = self.get("data.batch_size")

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key that may be absent."""
        return OmegaConf.select(self.config, key, default=default)

    def has(self, callback: str) -> bool:
        """Whether a callback is configured."""
        return bool(self.get(f"callbacks.{callback}"))
