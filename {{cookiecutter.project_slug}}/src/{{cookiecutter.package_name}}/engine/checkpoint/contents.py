"""A checkpoint is Lightning's dictionary in plain containers, and carries the configuration."""

import pickle
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ...errors import UserError


class CarryConfig(Callback):
    """Adds the resolved configuration to every checkpoint, under ``config``.

    With it a checkpoint alone is enough to rebuild the task and the data it was trained on.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Lightning is about to write the file."""
        checkpoint["config"] = self.config


def epoch_position(checkpoint: dict[str, Any]) -> dict[str, int] | None:
    """Where in its epoch a checkpoint was written; None if its loader could not tell."""
    positions = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader")
    return dict(positions[0]) if positions else None


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU without running any code in it (``weights_only=True``).

    Returns:
        Lightning's dictionary: ``state_dict``, ``optimizer_states``, ``loops``, ... and ``config``.

    Raises:
        UserError: If there is no such file, or it is no checkpoint of this project.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(
            f"checkpoint={path}: no such file; give one that a training run wrote, "
            "such as checkpoint=runs/.../checkpoints/best.ckpt"
        )
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise UserError(
            f"{path}: not a readable checkpoint ({' '.join(str(error).split())[:80]}); "
            "give one that a training run wrote"
        ) from None
    if not isinstance(checkpoint, dict) or not {"state_dict", "config"} <= checkpoint.keys():
        raise UserError(
            f"{path}: not a checkpoint of this project (it holds no configuration); "
            "give one that a training run wrote"
        )
    return checkpoint
