"""`strategy=single`: one process, one device. The reference that all others are compared with.

Exact: everything. Refuses: more than one device or node.
"""

from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from .global_batch import GlobalBatch


class Single(GlobalBatch, SingleDeviceStrategy):
    """Lightning's SingleDeviceStrategy with the global-batch sampler."""

    # The Trainer fills this in from `trainer.accelerator` and `trainer.devices`.
    parallel_devices: list[torch.device] | None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[0] if self.parallel_devices else torch.device("cpu")
