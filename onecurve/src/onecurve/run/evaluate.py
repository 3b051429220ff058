"""What one process of evaluate.py does: measure a checkpoint on the test set."""

from typing import Any

from omegaconf import OmegaConf

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
    with trainer_errors():
        trainer.test(task, datamodule=data, verbose=False)

    metrics = task_metrics(trainer)
    facts = {"checkpoint": str(cfg.checkpoint), "strategy": cfg.strategy.name}
    if trainer.is_global_zero:
        record.finished(run_dir, metrics | facts | {"world_size": trainer.world_size})
        show_metrics(metrics, run_dir)
    return metrics
