"""An example of your own callback."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer


class WeightNorm(Callback):
    """Logs the 2-norm of every parameter and of all of them, each under `norm/`.

    A norm that keeps growing suggests more weight decay; one that does not change suggests a
    larger learning rate.

    Args:
        every_n_epochs: Epochs between two measurements.
    """

    def __init__(self, every_n_epochs: int = 1) -> None:
        self.every_n_epochs = every_n_epochs

    @torch.no_grad()
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the norms on every rank, because a rank may hold only a part of the network."""
        if (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        strategy: Any = trainer.strategy
        norms: dict[str, torch.Tensor] = {}
        # The first rank gets each parameter unsharded, the others nothing, under any strategy.
        for name, weight in strategy.iter_full_tensors(dict(pl_module.named_parameters())):
            norms[f"norm/{name}"] = weight.norm().cpu()
        if norms:
            norms["norm/all"] = torch.stack(list(norms.values())).norm()
            for logger in trainer.loggers:
                values = {name: norm.item() for name, norm in norms.items()}
                logger.log_metrics(values, step=trainer.global_step - 1)
