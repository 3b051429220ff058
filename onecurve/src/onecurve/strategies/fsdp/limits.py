"""What needs full parameters or full gradients, of which a rank has shards, is rejected."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import LBFGS, Adafactor, Optimizer, Rprop

from ...errors import UserError
from ...torch_versions import require
from ..explained import PENALTY, name_of

WHOLE = {
    LBFGS: "it takes all parameters as one vector",
    Adafactor: "it takes means over the rows and columns of whole matrices",
}


def refuse_sparse(module: nn.Module, strategy: str) -> None:
    """Refuse layers whose gradients are sparse.

    Raises:
        UserError: That names the first.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            raise UserError(
                f"strategy={strategy}: {name} has sparse gradients, which cannot be cut; use "
                "sparse=False, or strategy=ddp"
            )


def refuse_whole(optimizers: Iterable[Optimizer], strategy: str) -> None:
    """Refuse optimizers that cannot update shards.

    Raises:
        UserError: That names the first.
    """
    for optimizer in optimizers:
        if isinstance(optimizer, Rprop):
            require("strategy=fsdp with Rprop")
        for kind, why in WHOLE.items():
            if isinstance(optimizer, kind):
                raise UserError(
                    f"strategy={strategy}: {type(optimizer).__name__} cannot update shards of "
                    f"parameters ({why}); use another optimizer, such as AdamW, or strategy=ddp"
                )


def refuse_of_shards(module: nn.Module, output: Any, strategy: str) -> None:
    """Refuse a loss that was computed of shards beside `forward`, such as a penalty on weights.

    Raises:
        UserError: If it is one.
    """
    loss = output.get("loss") if isinstance(output, dict) else output
    if isinstance(loss, DTensor):
        raise UserError(f"strategy={strategy}: {PENALTY.format(task=name_of(module))}")
