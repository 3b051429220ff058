"""What a task predicts for every sample, put together from all ranks, in the order of the data."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from ..batch.share import SharedLoader
from ..compat.of_lightning import loaders_of
from ..strategies.for_callbacks import ForCallbacks
from .inputs import network_inputs


class Predictions(Callback):
    """Keeps what `predict_step` returns; at the end the first rank has that of all.

    Attributes:
        pieces: For each loader what the step returned, share by share; None where that was nothing.
    """

    def __init__(self) -> None:
        self.pieces: list[list[Any]] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.pieces = [[] for _ in range(trainer.predict_loop.num_dataloaders)]

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        combined = loaders_of(trainer.predict_loop)
        assert combined is not None
        loader = combined.flattened[dataloader_idx]
        if isinstance(loader, SharedLoader) and not loader.share(batch_idx).size:
            # It was predicted on another rank's sample, as there were too few.
            outputs = None
        self.pieces[dataloader_idx].append(move_data_to_device(outputs, torch.device("cpu")))

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the shares of each batch together, in the order of their ranks."""
        strategy = cast(ForCallbacks, trainer.strategy)
        for loader, mine in enumerate(self.pieces):
            together: list[Any] = []
            # Batch by batch: only the first rank has to hold all of it.
            for index in range(max(strategy.of_all_samples(len(mine)))):
                share = mine[index] if index < len(mine) else None
                shares = strategy.of_all_samples(share)
                if trainer.is_global_zero:
                    together += shares
            self.pieces[loader] = together

    def joined(self) -> list[Any]:
        """For each loader the predictions of all its samples; None if there are none."""
        given = [[piece for piece in pieces if piece is not None] for pieces in self.pieces]
        return [joined(pieces) if pieces else None for pieces in given]


def give_step(task: LightningModule) -> None:
    """Let a task without a `predict_step` predict what its network gives."""
    if is_overridden("predict_step", task):
        return

    def predict_step(batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return task(*network_inputs(task, batch))

    task.predict_step = predict_step  # type: ignore[method-assign]


def joined(pieces: list[Any]) -> Any:
    """Put the predictions of consecutive samples together.

    Tensors are joined along their first dimension (where the others differ they become a list of
    rows), lists one after the other, dictionaries and tuples entry by entry. What is none of these
    has no rows, and becomes a list of what it was, share by share.
    """
    first = pieces[0]
    if isinstance(first, Tensor) and first.ndim:
        if len({piece.shape[1:] for piece in pieces}) == 1:
            return torch.cat(pieces)
        return [row for piece in pieces for row in piece]
    if isinstance(first, Mapping):
        return {key: joined([piece[key] for piece in pieces]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_asdict"):
        return joined([piece._asdict() for piece in pieces])
    if isinstance(first, tuple):
        return tuple(joined(list(parts)) for parts in zip(*pieces, strict=True))
    if isinstance(first, list):
        return [row for piece in pieces for row in piece]
    return pieces
