"""What several ranks cannot train as one process does: rejected, in one line.

Modules, optimizers and losses are rejected before a step where they can be recognised; an error of
PyTorch in a step becomes a line that tells the author of a task what to change. A backward pass of
manual optimization is `self.manual_backward`, as Lightning asks.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Optimizer, Rprop

from ..compat.of_torch import hooked
from ..errors import UserError, in_short, of_the_project, some_of
from ..torch_versions import require
from .fsdp.sharding import is_sharded
from .mesh.sizes import Sizes

UNUSED = "freeze what is not trained, or use strategy.find_unused_parameters=true"
TIMEOUT, CLOSED = "Timed out", "by peer"
IN_PLACE = "is a view and is being modified inplace"
PARTS = "each rank holds a part of {task}: call it as often on all ranks, or use strategy=ddp"
WORDS = {
    "parameters that were not used": "the step before used only some of the parameters; " + UNUSED,
    "Expected more than 1 value per channel": "BatchNorm cannot compute statistics of one sample, "
    "and a batch, or a rank's share or part of it, had only one; use drop_last=True in the "
    "DataLoader, another batch size, or trainer.sync_batchnorm=true",
    "SyncBatchNorm": "PyTorch's SyncBatchNorm is for GPUs alone; use BatchNorm, and "
    "trainer.sync_batchnorm=true",
    IN_PLACE: "{task} changes in place{at} what a sharded module was given or has returned; write "
    "x = x + y instead of x += y, make a unit of the modules that call it, by strategy.wrap=[...], "
    "or use strategy=ddp",
    "object layout differs": "a class has another base, such as ABC, before nn.Module, and "
    "PyTorch cannot change it; make nn.Module the first base, or use strategy=ddp ({said})",
    TIMEOUT: "rank {rank} has waited strategy.timeout_seconds for another rank{at}; " + PARTS,
    CLOSED: "rank {rank} waits for another rank{at}, which has ended; " + PARTS,
}
"""Our lines, by a part of PyTorch's message."""
SHARDED = (
    "{task} does with sharded weights or gradients what PyTorch cannot{at} ({said}): compute with "
    "them by calling the module that holds them, whose other methods strategy.forward_methods "
    "names, and whose parts strategy.wrap; read, copy and change weights between steps in `with "
    "self.trainer.strategy.full_parameters(self):`, take a norm by "
    "self.trainer.strategy.gradient_norm(), leave averages to "
    "onecurve.ExponentialMovingAverage, or use strategy=ddp"
)
"""What is said about whatever else shards cannot do."""
OF_SHARDS = re.compile(
    "DTensor|sharding strategy|Sharding propagation|mesh comm|tensor subclasses|0-d tensor|aten::?"
    "|not allocated yet|storage of size 0|functorch transform|used in the graph|c10d"
    "|RegisterPostBackward|deepcopy|sparse tensor"
)
"""What PyTorch's messages are about where it cannot handle shards."""


def reject_hooks(module: nn.Module, strategy: str) -> None:
    """Reject hooks of parameters, which are others once they are sharded."""
    if names := hooked(module):
        raise UserError(
            f"strategy={strategy}: {some_of(names)} have hooks (register_hook), and parameters are "
            "other tensors once they are sharded; change gradients in on_before_optimizer_step, or "
            "use strategy=ddp"
        )


def reject_optimizers(optimizers: Iterable[Optimizer]) -> None:
    """Reject optimizers that PyTorch, or an older one, computes wrongly on shards."""
    for optimizer in optimizers:
        if isinstance(optimizer, Rprop):
            require("strategy=fsdp with Rprop")
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        # Others than SGD update the real view of a parameter, which of a shard is a copy.
        complex_shards = [p for p in parameters if isinstance(p, DTensor) and p.is_complex()]
        if complex_shards and not isinstance(optimizer, SGD):
            raise UserError(
                f"strategy: {type(optimizer).__name__} cannot update shards of complex parameters; "
                "use torch.view_as_complex of real ones, SGD, or strategy=ddp"
            )


def reject_early_optimizers(
    module: nn.Module, optimizers: Iterable[Optimizer], strategy: str
) -> None:
    """Reject optimizers of parameters that shards have replaced: they would train nothing."""
    known = set(module.parameters())
    for optimizer in optimizers:
        parameters = {each for group in optimizer.param_groups for each in group["params"]}
        if not parameters <= known:
            raise UserError(
                f"strategy={strategy}: {type(optimizer).__name__} has parameters that are none of "
                f"{type(module).__name__}'s, as it was made before ranks shared them; make it, and "
                "its schedulers, in configure_optimizers, or use strategy=ddp"
            )


def reject_of_shards(module: nn.Module, output: Any, strategy: str) -> None:
    """Reject a loss computed from shards outside of `forward`, such as a penalty on weights."""
    loss = output.get("loss") if isinstance(output, dict) else output
    if isinstance(loss, DTensor):
        said = "its loss is a DTensor"
        line = SHARDED.format(task=type(module).__name__, at="", said=said)
        raise UserError(f"strategy={strategy}: {line}")


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
        if layer.scale_grad_by_freq or (layer.max_norm is not None and not looks_up_all):
            raise UserError(
                f"strategy={strategy}: {name} scales rows by what a batch looks up (max_norm, "
                "scale_grad_by_freq), and gets the batch in parts; leave that out, or use "
                "strategy=single"
            )


def explain_error(error: BaseException, module: nn.Module, strategy: str) -> UserError | None:
    """Explain an error of PyTorch in one line; None for any other error."""
    words = next((words for words in WORDS if words in str(error)), "")
    line = WORDS.get(words) if words != IN_PLACE or is_sharded(module) else None
    if line is None and is_sharded(module) and _is_of_shards(error):
        line = SHARDED
    if line is None or (words in (TIMEOUT, CLOSED) and not _calls_the_network(error)):
        return None
    said = in_short(error, 80) or type(error).__name__
    rank = dist.get_rank() if dist.is_initialized() else 0
    task = type(module).__name__
    return UserError(
        f"strategy={strategy}: {line.format(task=task, said=said, rank=rank, at=place_of(error))}"
    )


def _is_of_shards(error: BaseException) -> bool:
    last = extract_tb(error.__traceback__)[-1:]
    inside = any("/torch/distributed/tensor/" in frame.filename for frame in last)
    return inside or OF_SHARDS.search(str(error)) is not None


def _calls_the_network(error: BaseException) -> bool:
    """Whether a step or a network is running; else the rank waits for one that calls it."""
    names = {frame.name for frame in extract_tb(error.__traceback__)}
    return not names.isdisjoint({"_wrapped_call_impl", "run_step"})


def place_of(error: BaseException) -> str:
    """Where in the project's own code an error has come up; "" if it is nowhere there."""
    for trace in of_the_project(error)[-1:]:
        code = trace.tb_frame.f_code
        return f" in {code.co_name} ({Path(code.co_filename).name}:{trace.tb_lineno})"
    return ""


class ManualBackward:
    """Rejects gradients of a task that come from another backward pass than the strategy's.

    ``loss.backward()`` would not weight the loss by this rank's share, and under
    DistributedDataParallel average nothing.
    """

    def __init__(self, task: nn.Module, strategy: str) -> None:
        self._task, self._strategy = task, strategy
        self._is_under_way = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the gradients that backward passes add to parameters in this context."""
        with ExitStack() as stack:
            for parameter in self._task.parameters():
                if parameter.is_meta or not parameter.is_floating_point():
                    continue
                trains = parameter.requires_grad
                parameter.requires_grad_()  # a frozen one takes no hook, and may be trained later
                hook = parameter.register_post_accumulate_grad_hook(self._check)  # type: ignore[no-untyped-call]
                stack.callback(hook.remove)
                parameter.requires_grad_(trains)
            yield

    def _check(self, _: Tensor) -> None:
        if not self._is_under_way:
            raise UserError(
                f"strategy={self._strategy}: {type(self._task).__name__} calls loss.backward(), "
                "which does not know this rank's share of the batch; call "
                "self.manual_backward(loss), or use strategy=single"
            )

    @contextmanager
    def runs(self, inputs: Tensor | Sequence[Tensor] | None) -> Iterator[None]:
        """The context of the strategy's backward pass; `inputs` as for ``loss.backward()``."""
        if inputs is not None:
            # DistributedDataParallel, FSDP2 and stages wait for the gradients of all parameters.
            raise UserError(
                f"strategy={self._strategy}: {type(self._task).__name__} calls "
                "self.manual_backward(loss, inputs=...), and ranks compute the gradients of all "
                "parameters; call self.toggle_optimizer(optimizer) before, which freezes those of "
                "the others, or use strategy=single"
            )
        self._is_under_way = True
        try:
            yield
        finally:
            self._is_under_way = False


def manual_backward(task: LightningModule, strategy: str) -> ManualBackward | None:
    """What watches the backward passes of a task that optimizes manually."""
    return None if task.automatic_optimization else ManualBackward(task, strategy)


@contextmanager
def gradients_aside(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Within this context, start without the parameters' gradients; restore them afterwards."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
