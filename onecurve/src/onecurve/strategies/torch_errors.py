"""Turns errors of PyTorch into one line that tells the author of a task what to change."""

from pathlib import Path
from traceback import extract_tb, walk_tb

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ..errors import UserError
from .step_log import StepLog

UNUSED = "freeze what is not trained, or use strategy.find_unused_parameters=true"
PENALTY = (
    "the loss of {task} depends on sharded parameters in another way than through self(inputs); "
    "use weight_decay of the optimizer for a penalty, or strategy=ddp"
)
READ = (
    "the numbers of a sharded parameter are read directly, as Lightning's grad_norm does; use "
    "self.trainer.strategy.gradient_norm(), or use strategy=ddp"
)
DIFFERENTLY = (
    "{task} computes with gradients or weights that are sharded in different ways; use "
    "self.trainer.strategy.gradient_norm() for a norm, or strategy=fsdp"
)
WORDS = {
    "parameters that were not used": f"the step before used only some of the parameters; {UNUSED}",
    "Expected more than 1 value per channel": "BatchNorm cannot compute statistics of one sample, "
    "and a batch, or a rank's share or part of it, had only one; use drop_last=True in the "
    "DataLoader, another batch size, or on several GPUs Trainer(sync_batchnorm=True)",
    "SyncBatchNorm": "SyncBatchNorm, which sync_batchnorm=True makes of BatchNorm, is for GPUs "
    "alone; use sync_batchnorm=False, or strategy=single",
    "does not support deepcopy": "{task} copies a module whose parameters are sharded; make the "
    "copy in __init__, or use strategy=ddp",
    "aten.equal": "parameters are compared (BaseFinetuning does it to unfreeze them), and some are "
    "sharded differently from others; unfreeze by requires_grad alone, or use strategy=fsdp",
    "out of bounds for storage of size 0": "parameters of {task} were freed before a backward pass "
    "that its step runs by itself (torch.autograd.grad); use strategy=ddp",
    "functorch transform": "{task} maps or differentiates its layers by torch.func, which cannot "
    "pass through layers that ranks share; use strategy=ddp",
    "not have been used in the graph": "{task} asks torch.autograd.grad for gradients of "
    "parameters, and layers compute with others that ranks share; leave that to the backward pass "
    "of a loss, or use strategy=ddp",
    "RegisterPostBackwardFunction": "a layer changes its input in place (x += y), and PyTorch "
    "needs the gradient of that input; write x = x + y in its forward, or use strategy=ddp",
    "object layout differs": "{quoted} has another base, such as ABC, before nn.Module, and "
    "PyTorch cannot change its class; make nn.Module the first base, or use strategy=ddp",
    "its data is not allocated yet": READ,
    "is not supported for tensor subclasses": "the numbers of a sharded parameter are read by "
    "numpy() or tolist(); call its full_tensor() on all ranks first, or use strategy=ddp",
    "len() of a 0-d tensor": READ,  # torch.tensor(list of shards' norms)
    "Sharding propagation failed": DIFFERENTLY,
    "Cross device mesh comm": DIFFERENTLY,
    "aten.copy_.default got mixed": "sharded weights are copied, as Lightning's averages of "
    "weights do; use onecurve.ExponentialMovingAverage or onecurve.StochasticWeightAveraging, or "
    "use strategy=ddp",
    "_is_any_true": "detect_anomaly=True looks into gradients that are sharded, which PyTorch "
    "cannot; use it with strategy=ddp, or strategy=single",
    "Operator c10d.allreduce_": "{task} logs a number that it computes from sharded weights or "
    "gradients; use self.trainer.strategy.gradient_norm() for a norm, or strategy=ddp",
    "got mixed torch.Tensor and DTensor": "{task} computes with a sharded parameter, or with a "
    "tensor made like one (zeros_like); call the module that holds it, use "
    "torch.zeros(..., device=self.device), or use strategy=ddp",
}
"""Our lines, by a part of PyTorch's message; `quoted` stands for what the message quotes last."""
COMBINES = (
    "{name} combines several parameters in its step, or needs full ones, and they are sharded; use "
    "another optimizer, such as AdamW, or strategy=ddp"
)
CALL = "_wrapped_call_impl"
"""The name of the first frame when an nn.Module is called."""
STEP = "_call_task"
"""The name of the frame that calls a step of the task."""


def explain_error(error: BaseException, module: nn.Module, strategy: str) -> UserError | None:
    """Explain an error of PyTorch in one line; None for any other error."""
    said = str(error)
    lines = [line for words, line in WORDS.items() if words in said] + _called_alone(error)
    if isinstance(error, AssertionError) and not said:
        # For example `loss += penalty`, which would turn the loss into a DTensor in place.
        last = extract_tb(error.__traceback__)[-1:]
        lines = [PENALTY for frame in last if "/distributed/tensor/" in frame.filename]
    if strategy == "ddp":  # an error of the task itself, in the same words
        lines = [line for line in lines if not line.endswith("strategy=ddp")]
    if not lines:
        return None
    if name := _stepping(error):
        lines = [COMBINES.format(name=name)]
    quoted = ["", *said.split("'")][-2]
    line = lines[0].format(task=type(module).__name__, quoted=quoted)
    if strategy == "fsdp":
        line = line.replace("strategy=fsdp", "strategy=ddp")
    return UserError(f"strategy={strategy}: {line}")


def _stepping(error: BaseException) -> str | None:
    """The class of the optimizer whose own step failed, but not in its closure."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    names = [frame.f_code.co_name for frame in frames]
    if "step" not in names or {"closure", "_wrap_closure"} & {*names}:
        return None
    last = frames[len(names) - 1 - names[::-1].index("step")].f_locals.get("self")
    return type(last).__name__ if isinstance(last, Optimizer) else None


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
