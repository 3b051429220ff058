"""What was trained, out of its checkpoint alone: the task with its weights, and its data."""

from collections.abc import Callable
from typing import NamedTuple

from hydra.utils import instantiate
from lightning.pytorch import LightningDataModule, LightningModule, seed_everything
from omegaconf import DictConfig, OmegaConf
from torch import nn

from ..checkpoint.format import network_mismatch, read_checkpoint, trained_config
from ..errors import UserError
from .building import building, checked
from .fit import build_task


class Trained(NamedTuple):
    """What a checkpoint describes."""

    task: LightningModule
    data: LightningDataModule
    config: DictConfig
    """Of the training run."""


def trained(
    cfg: DictConfig,
    convert: Callable[[nn.Module], nn.Module] = lambda module: module,
    is_checked: bool = True,
) -> Trained:
    """Build task and data again from the configuration that is in a checkpoint.

    Args:
        cfg: A configuration with `checkpoint`, and `data`: what is to be otherwise; null is not.
        convert: Brings the task to the precision of the run, before the weights come: or float64
            would be cut to float32.
        is_checked: Whether the command has looked at the file, as `read_checkpoint` takes it.

    Raises:
        UserError: If the project has no such task or data any more, or its network is another.
    """
    checkpoint = read_checkpoint(cfg.checkpoint, is_checked=is_checked)
    config = OmegaConf.create(trained_config(checkpoint, cfg.checkpoint))
    seed_everything(config.seed, workers=True, verbose=False)
    changes = {key: value for key, value in cfg.data.items() if value is not None}
    with building("data"):
        data = instantiate(checked("data", OmegaConf.merge(config.data, changes)))
    task = build_task(config)
    convert(task)
    if why := network_mismatch(task, checkpoint):
        raise UserError(
            f"checkpoint={cfg.checkpoint}: {why}; its model or task was changed since: "
            "give one that was trained with what is there now"
        )
    task.load_state_dict(checkpoint["state_dict"])
    return Trained(task, data, config)
