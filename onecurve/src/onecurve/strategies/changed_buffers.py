"""What a forward pass changes, and what becomes of it where a batch is computed in parts."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import UserError, say, some_of


def changed(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> list[str]:
    """Names of the buffers whose values have changed."""
    return [name for name, value in before.items() if not torch.equal(value, now[name])]


def report_changed(strategy: str, part: str, names: Sequence[str]) -> None:
    """Print which buffers will differ from those under `single`.

    Args:
        strategy: Name of the strategy.
        part: What the strategy splits a batch into.
        names: Names of the buffers that training changes.
    """
    if names:
        say(
            f"strategy={strategy}: {some_of(names)} will differ from strategy=single: "
            f"they change with each {part}, as BatchNorm's statistics do"
        )


def reject_scaled_rows(module: nn.Module, strategy: str, looks_up_all: bool = False) -> None:
    """Reject embeddings that scale rows, or their gradients, by what a whole batch looks up.

    Args:
        module: The task.
        strategy: Name of the strategy.
        looks_up_all: Whether a rank looks up the rows of all samples, if in micro-batches.
    """
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            continue
        if layer.max_norm is not None and not looks_up_all:
            raise UserError(
                f"strategy={strategy}: {name} scales the rows that it looks up (max_norm), other "
                "ones on each rank; use max_norm=None and scale all rows in on_train_batch_end, "
                "or strategy=single"
            )
        if layer.scale_grad_by_freq:
            raise UserError(
                f"strategy={strategy}: {name} divides gradients by how often a batch looks up a "
                "row (scale_grad_by_freq), but gets the batch in parts; use "
                "scale_grad_by_freq=False, or strategy=single"
            )
