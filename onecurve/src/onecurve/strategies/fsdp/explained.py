"""What needs full parameters or full gradients, of which a rank has shards, in one line.

Some of it is rejected before training; of the rest PyTorch's errors are explained to somebody who
has written a task.
"""

from collections.abc import Iterable
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import LBFGS, Adafactor, Optimizer, Rprop

from ...errors import UserError
from ...torch_versions import require

WORDS = {
    "does not support deepcopy": "{task} copies a module whose parameters are sharded; make the "
    "copy in __init__, or use strategy=ddp",
    "aten.equal": "parameters are compared (BaseFinetuning does it to unfreeze them), and some are "
    "cut in another way than others; unfreeze by requires_grad alone, or use strategy=fsdp",
    "out of bounds for storage of size 0": "parameters of {task} were freed before its backward "
    "pass: a step has one of its own (torch.autograd.grad; use strategy=ddp)",
    "RegisterPostBackwardFunction is a view": "a layer changes what it is given in place (x += y), "
    "where PyTorch waits for its gradient; write x = x + y in its forward, or use strategy=ddp",
    "object layout differs": "{quoted} has another base, such as ABC, before nn.Module, and "
    "PyTorch cannot make another class of it; let nn.Module be the first one, or use strategy=ddp",
    "its data is not allocated yet": "numbers are read out of a shard, as Lightning's grad_norm "
    "does; take self.trainer.strategy.gradient_norm(), or use strategy=ddp",
    "aten.copy_.default got mixed": "weights are copied of which a rank has shards, as Lightning's "
    "averages of weights do; take onecurve.ExponentialMovingAverage or "
    "onecurve.StochasticWeightAveraging, or use strategy=ddp",
    "got mixed torch.Tensor and DTensor": "{task} computes with a parameter, or with what was made "
    "like one (zeros_like), of which a rank has shards; call the module that holds it, take "
    "torch.zeros(..., device=self.device), or use strategy=ddp",
}
"""By PyTorch's words; of these `quoted` is what they quote last."""
CALL = "_wrapped_call_impl"
"""The first frame of a call of an nn.Module."""


def explained(error: BaseException, module: nn.Module, strategy: str) -> UserError | None:
    """What PyTorch's error about a shard means in a task, in one line; None for any other error."""
    said = str(error)
    lines = [line for words, line in WORDS.items() if words in said] + _called_alone(error)
    if isinstance(error, AssertionError) and not said:
        # As of `loss += penalty`, which would make another kind of tensor of it.
        last = extract_tb(error.__traceback__)[-1:]
        lines = [PENALTY for frame in last if "/distributed/tensor/" in frame.filename]
    if not lines:
        return None
    quoted = ["", *said.split("'")][-2]
    return UserError(f"strategy={strategy}: {lines[0].format(task=name_of(module), quoted=quoted)}")


def _called_alone(error: BaseException) -> list[str]:
    """Where a rank has called the network outside of a step, if it waits there for the others."""
    frames = extract_tb(error.__traceback__)
    names = [frame.name for frame in frames]
    if "Timed out" not in str(error) or "_call_task" in names or CALL not in names:
        return []
    at = frames[names.index(CALL) - 1]
    where = f"{at.name} ({Path(at.filename).name}:{at.lineno})"
    return [
        f"rank {dist.get_rank()} calls {{task}} in {where}, and another rank did not within "
        "strategy.timeout_seconds; each has a part of it: call it on all ranks, or use strategy=ddp"
    ]


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


PENALTY = (
    "the loss of {task} depends on parameters, of which a rank has shards, in another way than "
    "through self(inputs); use weight_decay of the optimizer for a penalty, or strategy=ddp"
)


def refuse_of_shards(module: nn.Module, output: Any, strategy: str) -> None:
    """Refuse a loss that was computed of shards beside `forward`, such as a penalty on weights.

    Raises:
        UserError: If it is one.
    """
    loss = output.get("loss") if isinstance(output, dict) else output
    if isinstance(loss, DTensor):
        raise UserError(f"strategy={strategy}: {PENALTY.format(task=name_of(module))}")


def name_of(module: nn.Module) -> str:
    """The class of a task, as its author calls it."""
    # fully_shard has made another class of it.
    return type(module).__name__.removeprefix("FSDP")
