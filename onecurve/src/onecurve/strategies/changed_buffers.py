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


def reject_scaled_rows(module: nn.Module, strategy: str) -> None:
    """Reject embeddings that scale the rows they look up, which are other ones on each rank."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise UserError(
                f"strategy={strategy}: {name} scales the rows that it looks up (max_norm), other "
                "ones on each rank; use max_norm=None and scale all rows in on_train_batch_end, "
                "or strategy=single"
            )
