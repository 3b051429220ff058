"""`strategy=single`: one process, one device. The reference that all others are compared with.

Exact: it is a plain Trainer, with the same samples, loaders, random numbers and hooks. It adds two
things: a checkpoint of any step resumes exactly, for which a fit iterates each loader in a wrapper
that counts, and accumulated batches count by their samples.
Rejects: more than one device or process.
"""

from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from .. import machine
from ..arguments import configured_by
from ..errors import UserError
from .options import SingleOptions
from .strategy import OneCurve


class Single(OneCurve, SingleDeviceStrategy):
    """Lightning's SingleDeviceStrategy, whose checkpoints resume exactly.

    Further arguments are those of `lightning.pytorch.strategies.SingleDeviceStrategy`.
    """

    name = "single"
    # The Trainer sets this from `trainer.accelerator` and `trainer.devices`.
    parallel_devices: list[torch.device] | None = None

    @configured_by(SingleOptions, "strategy")
    def __init__(self, options: SingleOptions) -> None:
        super().__init__(options)

    def setup_environment(self) -> None:
        """Reject several processes: each of them would train the same network on all samples."""
        ranks = machine.ranks_around()
        if ranks is not None and ranks.world_size > 1:
            raise UserError(
                f"strategy: {type(self).__name__} needs one process, and {ranks.starter} started "
                f"{ranks.world_size}; start one, or use a strategy for several, such as ddp"
            )
        super().setup_environment()

    def shared(self, loader: Any) -> Any:
        """The loader itself in an evaluation, of which no position is kept."""
        return super().shared(loader) if self._connected_module.trainer.training else loader

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[0] if self.parallel_devices else torch.device("cpu")
