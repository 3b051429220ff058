"""What one process does to measure a checkpoint on the test set."""

from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from lightning.pytorch import seed_everything
from omegaconf import OmegaConf

from ..checkpoint.contents import read_checkpoint, trained_config
from . import record
from .fit import build_task, task_metrics
from .summary import show_metrics
from .trainer import build_trainer


def work(config: dict[str, Any], run_dir: Path) -> dict[str, float]:
    """Rebuild task and data from the checkpoint's own configuration and run the test.

    Args:
        config: The resolved configuration of `evaluate.py`.
        run_dir: Where metrics.json goes.

    Returns:
        The test metrics by name.
    """
    cfg = OmegaConf.create(config)
    checkpoint = read_checkpoint(cfg.checkpoint, is_checked=True)
    trained = OmegaConf.create(trained_config(checkpoint, cfg.checkpoint))
    data_changes = {key: value for key, value in cfg.data.items() if value is not None}
    seed_everything(trained.seed, workers=True, verbose=False)

    data = instantiate(OmegaConf.merge(trained.data, data_changes))
    task = build_task(trained)
    trainer = build_trainer(cfg, run_dir, extra_callbacks=[])
    # Before the weights come, or float64 would be cut to float32.
    trainer.precision_plugin.convert_module(task)
    task.load_state_dict(checkpoint["state_dict"])
    trainer.test(task, datamodule=data, verbose=False)

    metrics = task_metrics(trainer)
    facts = {"checkpoint": str(cfg.checkpoint), "strategy": cfg.strategy.name}
    if trainer.is_global_zero:
        record.finished(run_dir, metrics | facts | {"world_size": trainer.world_size})
        show_metrics(metrics, run_dir)
    return metrics
