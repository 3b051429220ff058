"""Parameters, gradients and learning rates of a step, whoever holds them."""

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from torch import Tensor


def learning_rates(trainer: Trainer) -> dict[str, float]:
    """One for each parameter group; none if the callback lr_monitor logs them."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    if any(isinstance(callback, LearningRateMonitor) for callback in callbacks):
        return {}
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    names = [group.get("name", str(number)) for number, group in enumerate(groups)]
    if len(groups) == 1:
        return {"learning_rate": float(groups[0]["lr"])}
    return {
        f"learning_rate/{name}": float(group["lr"])
        for name, group in zip(names, groups, strict=True)
    }


def show_histograms(writer: Any, trainer: Trainer) -> None:
    """Histograms of all parameters and gradients. All ranks call this; the first has a writer."""
    strategy: Any = trainer.strategy
    parameters: dict[str, Tensor] = {
        name: parameter.detach()
        for name, parameter in trainer.lightning_module.named_parameters()
        if not parameter.is_meta
    }
    gradients: dict[str, Tensor] = {
        name: parameter.grad
        for name, parameter in trainer.lightning_module.named_parameters()
        if parameter.grad is not None
    }
    for kind, tensors in (("parameters", parameters), ("gradients", gradients)):
        for name, tensor in strategy.each_whole(tensors):
            if writer:
                writer.histogram(f"{kind}/{name}", tensor.float().cpu(), trainer.global_step)
