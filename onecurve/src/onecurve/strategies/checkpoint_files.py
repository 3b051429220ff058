"""Checkpoints of a strategy: files of one format for all of them, read where they lie."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO

from ..batch.resume import Place, TrainingEpochs
from ..checkpoint.storage import LocalFiles
from ..checkpoint.stored import model_state_here, optimizer_states_here
from .for_callbacks import ForCallbacks


class CheckpointFiles(ForCallbacks):
    """Mix-in for strategies: what writes and reads their checkpoints.

    Attributes:
        epochs: Those of the fit under way; None outside of one.
    """

    epochs: TrainingEpochs | None = None

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """What writes and reads checkpoints: whole files, unless a Trainer was given another."""
        if self._checkpoint_io is None:
            self._checkpoint_io = LocalFiles()
        return super().checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, io: CheckpointIO) -> None:
        self._checkpoint_io = io

    @property
    def keeps_shards(self) -> bool:
        """Whether every rank writes what it holds, so that nothing is gathered."""
        return isinstance(self.checkpoint_io, LocalFiles) and self.checkpoint_io.keeps_shards

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint; Lightning's own does so on the first rank."""
        if self.epochs is not None and "loops" in checkpoint:
            checkpoint["random"] = self.epochs.state()
        if self.keeps_shards:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, and remember where in its epoch a fit goes on."""
        checkpoint = self._read(checkpoint_path, weights_only)
        epochs = self.epochs
        # Not where a callback goes back to where this fit began: its loader is there already.
        if epochs is not None and epochs.trainer.train_dataloader is None:
            epochs.resume_from(Place(checkpoint))
            # Where there are max_steps, Lightning would go on inside an epoch that was at its end.
            epochs.trainer.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign]
        return checkpoint

    def _read(self, path: str | Path, weights_only: bool | None) -> dict[str, Any]:
        """Read a file, or be told by rank 0, which wrote it on the disk of its node."""
        files, meet = self.checkpoint_io, dist.is_available() and dist.is_initialized()
        if meet and isinstance(files, LocalFiles) and self._connected_module.trainer.num_nodes > 1:
            all_see_it = self.reduce_boolean_decision(files.has(path))
            if not all_see_it and not self.is_global_zero:
                return cast(dict[str, Any], self.broadcast(None))
        else:
            all_see_it = True
        checkpoint: dict[str, Any] = super().load_checkpoint(path, weights_only)
        return checkpoint if all_see_it else self.broadcast(checkpoint)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load the network's state, of which a sharded checkpoint has to be asked."""
        state = model_state_here(checkpoint["state_dict"], self._connected_module.state_dict())
        super().load_model_state_dict({"state_dict": state}, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        states = optimizer_states_here(checkpoint["optimizer_states"], self.optimizers)
        super().load_optimizer_state_dict({"optimizer_states": states})
