"""What errors of PyTorch mean to somebody who has written a task, in one line."""

from pathlib import Path
from traceback import extract_tb

import torch.distributed as dist
from torch import nn

from ..errors import UserError

UNUSED = "freeze what is not trained, or use strategy.find_unused_parameters=true"
PENALTY = (
    "the loss of {task} depends on parameters, of which a rank has shards, in another way than "
    "through self(inputs); use weight_decay of the optimizer for a penalty, or strategy=ddp"
)
WORDS = {
    "parameters that were not used": f"the step before used only some of the parameters; {UNUSED}",
    "Expected more than 1 value per channel": "BatchNorm can take no statistics of one sample, and "
    "a batch, or a rank's share or part of it, was one; use drop_last=True in the DataLoader, "
    "another batch size, or on several GPUs Trainer(sync_batchnorm=True)",
    "SyncBatchNorm": "SyncBatchNorm, which sync_batchnorm=True makes of BatchNorm, is for GPUs "
    "alone; use sync_batchnorm=False, or strategy=single",
    "does not support deepcopy": "{task} copies a module whose parameters are sharded; make the "
    "copy in __init__, or use strategy=ddp",
    "aten.equal": "parameters are compared (BaseFinetuning does it to unfreeze them), and some are "
    "cut in another way than others; unfreeze by requires_grad alone, or use strategy=fsdp",
    "out of bounds for storage of size 0": "parameters of {task} were freed before its backward "
    "pass: a step has one of its own (torch.autograd.grad; use strategy=ddp)",
    "RegisterPostBackwardFunction": "a layer changes what it is given in place (x += y), "
    "where PyTorch waits for its gradient; write x = x + y in its forward, or use strategy=ddp",
    "object layout differs": "{quoted} has another base, such as ABC, before nn.Module, and "
    "PyTorch cannot make another class of it; let nn.Module be the first one, or use strategy=ddp",
    "its data is not allocated yet": "numbers are read out of a shard, as Lightning's grad_norm "
    "does; take self.trainer.strategy.gradient_norm(), or use strategy=ddp",
    "Sharding propagation failed": "{task} computes with gradients or weights that are sharded in "
    "different ways; take self.trainer.strategy.gradient_norm() for a norm, or use strategy=fsdp",
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
    """What an error of PyTorch means in a task, in one line; None for any other error."""
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
    waits = "Timed out" in str(error) and dist.is_initialized()
    if not waits or "_call_task" in names or CALL not in names:
        return []
    at = frames[names.index(CALL) - 1]
    where = f"{at.name} ({Path(at.filename).name}:{at.lineno})"
    return [
        f"rank {dist.get_rank()} calls {{task}} in {where}, and another rank did not within "
        "strategy.timeout_seconds; each has a part of it: call it on all ranks, or use strategy=ddp"
    ]


def name_of(module: nn.Module) -> str:
    """The class of a task, as its author calls it."""
    # fully_shard has made another class of it.
    return type(module).__name__.removeprefix("FSDP")
