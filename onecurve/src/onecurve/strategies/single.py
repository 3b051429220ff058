"""`strategy=single`: one process, one device. The reference that all others are compared with.

Exact: everything. Refuses: more than one device or process.
"""

from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from .. import machine
from ..errors import UserError
from .global_batch import GlobalBatch
from .layers_made import Recomputed


class Single(GlobalBatch, SingleDeviceStrategy):
    """Lightning's SingleDeviceStrategy with the global-batch sampler.

    Args:
        activation_checkpointing: What a backward pass computes again: see `layers_made`.
        kwargs: What `lightning.pytorch.strategies.SingleDeviceStrategy` takes.
    """

    name = "single"
    # The Trainer fills this in from `trainer.accelerator` and `trainer.devices`.
    parallel_devices: list[torch.device] | None = None

    def __init__(self, activation_checkpointing: Recomputed = "none", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation_checkpointing = activation_checkpointing

    def setup_environment(self) -> None:
        """Refuse ranks, each of which would train all of the network on all samples.

        Raises:
            UserError: If this process is one of several.
        """
        ranks = machine.ranks_around()
        if ranks is not None and ranks.world_size > 1:
            raise UserError(
                f"strategy: {type(self).__name__} is one process, and {ranks.starter} started "
                f"{ranks.world_size}; start one, or use a strategy of several, such as ddp"
            )
        super().setup_environment()

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[0] if self.parallel_devices else torch.device("cpu")
