"""Rejects modules, optimizers and losses that several ranks cannot train as one process does."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import LBFGS, Adafactor, Optimizer, Rprop

from ..compat.of_torch import hooked
from ..errors import UserError, some_of
from ..torch_versions import require
from .torch_errors import PENALTY

NEEDS_FULL = {
    LBFGS: "it takes all parameters as one vector",
    Adafactor: "it takes means over the rows and columns of full matrices",
}


def reject_sparse(module: nn.Module, strategy: str) -> None:
    """Reject layers whose gradients are sparse."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            raise UserError(
                f"strategy={strategy}: {name} has sparse gradients, which cannot be sharded; use "
                "sparse=False, or strategy=ddp"
            )


def reject_hooks(module: nn.Module, strategy: str) -> None:
    """Reject hooks of parameters, which are others once they are sharded."""
    if names := hooked(module):
        raise UserError(
            f"strategy={strategy}: {some_of(names)} have hooks (register_hook), and parameters are "
            "other tensors once they are sharded; change gradients in on_before_optimizer_step, or "
            "use strategy=ddp"
        )


def reject_optimizers(optimizers: Iterable[Optimizer], strategy: str) -> None:
    """Reject optimizers that cannot update shards."""
    for optimizer in optimizers:
        if isinstance(optimizer, Rprop):
            require("strategy=fsdp with Rprop")
        for kind, why in NEEDS_FULL.items():
            if isinstance(optimizer, kind):
                raise UserError(
                    f"strategy={strategy}: {type(optimizer).__name__} cannot update shards of "
                    f"parameters ({why}); use another optimizer, such as AdamW, or strategy=ddp"
                )


def reject_of_shards(module: nn.Module, output: Any, strategy: str) -> None:
    """Reject a loss computed from shards outside of `forward`, such as a penalty on weights."""
    loss = output.get("loss") if isinstance(output, dict) else output
    if isinstance(loss, DTensor):
        raise UserError(f"strategy={strategy}: {PENALTY.format(task=type(module).__name__)}")


def reject_scalars(module: nn.Module, strategy: str) -> None:
    """Reject parameters without a dimension, which only data parallelism supports."""
    for name, parameter in module.named_parameters():
        if parameter.ndim == 0:
            raise UserError(
                f"strategy={strategy}: parameter {name} has no dimension to shard, which pipeline "
                "and context require; give it one, such as torch.ones(1), or use strategy=fsdp"
            )


def reject_scaled_rows(module: nn.Module, strategy: str, looks_up_all: bool = False) -> None:
    """Reject embeddings that scale rows, or their gradients, by what a whole batch looks up.

    `looks_up_all`: whether a rank looks up the rows of all samples, if in micro-batches.
    """
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            continue
        if layer.max_norm is not None and not looks_up_all:
            raise UserError(
                f"strategy={strategy}: {name} scales the rows that it looks up (max_norm), "
                "different ones on each rank; use max_norm=None and scale all rows in "
                "on_train_batch_end, or strategy=single"
            )
        if layer.scale_grad_by_freq:
            raise UserError(
                f"strategy={strategy}: {name} divides gradients by how often a batch looks up a "
                "row (scale_grad_by_freq), but gets the batch in parts; use "
                "scale_grad_by_freq=False, or strategy=single"
            )
