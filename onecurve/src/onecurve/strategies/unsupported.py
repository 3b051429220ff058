"""What several ranks cannot train as one process does: rejected, in one line.

Modules, optimizers and losses are rejected before a step where they can be recognised; an error of
PyTorch in a step becomes a line that tells the author of a task what to change.
"""

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from traceback import extract_tb, walk_tb
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import LBFGS, Adafactor, Optimizer, Rprop

from ..compat.of_torch import hooked
from ..errors import UserError, in_short, some_of
from ..torch_versions import require
from .fsdp.sharding import is_sharded
from .mesh.sizes import Sizes
from .step_log import StepLog

NEEDS_FULL = {
    LBFGS: "it takes all parameters as one vector",
    Adafactor: "it takes means over the rows and columns of full matrices",
}
UNUSED = "freeze what is not trained, or use strategy.find_unused_parameters=true"
PENALTY = (
    "the loss of {task} depends on sharded parameters in another way than through self(inputs); "
    "use weight_decay of the optimizer for a penalty, or strategy=ddp"
)
SHARDED = (
    "{task} does with sharded weights or gradients what PyTorch cannot ({said}): compute with them "
    "by calling the module that holds them, read and change weights between steps in `with "
    "self.trainer.strategy.full_parameters(self):`, take a norm by "
    "self.trainer.strategy.gradient_norm(), leave averages to "
    "onecurve.ExponentialMovingAverage, or use strategy=ddp"
)
WORDS = {
    "parameters that were not used": f"the step before used only some of the parameters; {UNUSED}",
    "Expected more than 1 value per channel": "BatchNorm cannot compute statistics of one sample, "
    "and a batch, or a rank's share or part of it, had only one; use drop_last=True in the "
    "DataLoader, another batch size, or trainer.sync_batchnorm=true",
    "SyncBatchNorm": "PyTorch's SyncBatchNorm is for GPUs alone; use BatchNorm, and "
    "trainer.sync_batchnorm=true",
    "does not support deepcopy": "{task}, or a callback such as Lightning's averages of weights, "
    "copies a module whose parameters are sharded; make the copy in __init__, use "
    "onecurve.StochasticWeightAveraging, or use strategy=ddp",
    "object layout differs": "a class has another base, such as ABC, before nn.Module, and "
    "PyTorch cannot change it; make nn.Module the first base, or use strategy=ddp ({said})",
}
"""Our lines, by a part of PyTorch's message."""
OF_SHARDS = re.compile(
    "DTensor|sharding strategy|Sharding propagation|mesh comm|tensor subclasses|0-d tensor|aten::?"
    "|not allocated yet|storage of size 0|functorch transform|used in the graph|c10d"
    "|RegisterPostBackward"
)
"""What PyTorch's messages are about where it cannot handle shards."""
CALL = "_wrapped_call_impl"
"""The name of the first frame when an nn.Module is called."""
STEP = "_call_task"
"""The name of the frame that calls a step of the task."""


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


def reject_scaled_rows(module: nn.Module, strategy: str, sizes: Sizes) -> None:
    """Reject embeddings that scale rows, or their gradients, by what a whole batch looks up."""
    # A stage of a pipeline looks up the rows of all samples, if in micro-batches.
    looks_up_all = sizes.data_parallel * sizes.context == 1
    if looks_up_all and sizes.pipeline == 1:
        return
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


def explain_error(error: BaseException, module: nn.Module, strategy: str) -> UserError | None:
    """Explain an error of PyTorch in one line; None for any other error."""
    said = str(error)
    lines = [line for words, line in WORDS.items() if words in said] + _called_alone(error)
    if not lines and is_sharded(module) and _is_of_shards(error):
        lines = [*_past_its_unit(error, module), SHARDED]
    if not lines:
        return None
    short = in_short(error, 80) or type(error).__name__
    line = lines[0].format(task=type(module).__name__, said=short)
    return UserError(f"strategy={strategy}: {line}")


def _is_of_shards(error: BaseException) -> bool:
    last = extract_tb(error.__traceback__)[-1:]
    inside = any("/torch/distributed/tensor/" in frame.filename for frame in last)
    return inside or OF_SHARDS.search(str(error)) is not None


def _past_its_unit(error: BaseException, task: nn.Module) -> list[str]:
    """Explain that a module was used without the call for which its parameters are gathered.

    FSDP2 gathers a unit for its call, not for its parts or its other methods.
    """
    names = {part: name for name, part in task.named_modules() if part is not task}
    units: list[Any] = [part for part in names if isinstance(part, FSDPModule)]
    frames = list(walk_tb(error.__traceback__))
    for (caller, line), (frame, _) in pairwise(frames):
        part, method = frame.f_locals.get("self"), frame.f_code.co_name
        if not isinstance(part, nn.Module) or part not in names:
            continue
        unit = next((each for each in reversed(units) if part in {*each.modules()}), None)
        if unit is None:
            continue
        if part is unit and method in (CALL, "wrapped_method"):  # of FSDP2
            return []
        name, kind = names[part], type(part).__name__
        at = f"({Path(caller.f_code.co_filename).name}:{line})"
        if part is unit:
            return [
                f"{{task}} calls {name}.{method} {at}, for which parameters are not gathered; use "
                f"strategy.forward_methods=[{method}], or strategy=ddp"
            ]
        return [
            f"{{task}} calls {name} {at} by itself, whose parameters are gathered when "
            f"{names[unit]} is called; use strategy.wrap=[{kind}], or strategy=ddp"
        ]
    return []


def _called_alone(error: BaseException) -> list[str]:
    """Explain a timeout where a rank has called the network, and another has not."""
    frames = extract_tb(error.__traceback__)
    names = [frame.name for frame in frames]
    if "Timed out" not in str(error) or not dist.is_initialized():
        return []
    first = names.index(STEP) if STEP in names else 0
    if CALL in names[first:]:
        at = frames[names.index(CALL, first) - 1]
        does, did = f"calls {{task}} in {at.name} ({Path(at.filename).name}:{at.lineno})", "did"
    elif StepLog.compare.__name__ in names:
        does, did = "has ended its step", "has"
    else:
        return []
    return [
        f"rank {dist.get_rank()} {does}, and another rank {did} not within "
        "strategy.timeout_seconds; each rank holds a part of {task}: call it as often on all "
        "ranks, or use strategy=ddp"
    ]
