"""What one process of evaluate.py does: measure a checkpoint on the test set."""

from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from omegaconf import OmegaConf

from ..errors import UserError
from . import record
from .context import RunContext
from .instantiate import load_trained, trainer_errors
from .summary import show_metrics
from .trainer import build_trainer, task_metrics


def work(config: dict[str, Any], context: RunContext) -> dict[str, float]:
    """Rebuild task and data from the checkpoint's own configuration, and return test metrics."""
    cfg, run_dir = OmegaConf.create(config), context.run_dir
    trainer = build_trainer(cfg, run_dir, extra_callbacks=[])
    task, data, _ = load_trained(cfg, trainer.precision_plugin.convert_module)
    reject_without_test(task, data)
    with trainer_errors():
        trainer.test(task, datamodule=data, verbose=False)

    metrics = task_metrics(trainer)
    facts = {"checkpoint": str(cfg.checkpoint), "strategy": cfg.strategy.name}
    if trainer.is_global_zero:
        record.finished(run_dir, metrics | facts | {"world_size": trainer.world_size})
        show_metrics(metrics, run_dir)
    return metrics


def reject_without_test(task: LightningModule, data: LightningDataModule, hint: str = "") -> None:
    """Reject what Lightning would reject only once the test begins, after the training."""
    for name, part in {"test_step": task, "test_dataloader": data}.items():
        if not is_overridden(name, part):
            raise UserError(f"{type(part).__name__} has no {name}; write one{hint}")
