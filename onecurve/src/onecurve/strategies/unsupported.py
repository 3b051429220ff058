"""What several ranks cannot train as one process does: rejected, in one line.

Modules, optimizers, losses and what else a method of a task returns are rejected before they do
harm, where they can be recognised; an error of PyTorch in a step becomes a line that tells the
author of a task what to change. A backward pass of manual optimization is `self.manual_backward`,
as Lightning asks.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from traceback import extract_tb
from types import CodeType
from typing import Any

import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Optimizer

from ..batch.share import SharedLoader
from ..compat.of_lightning import have_no_optimizer
from ..compat.of_torch import hooked, tree_leaves
from ..errors import UserError, in_short, of_the_project, say, some_of
from .fsdp.sharding import is_sharded
from .mesh.ranks import Ranks, are_alike
from .mesh.sizes import Sizes

CONFIGURE = "configure_optimizers"
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
    "must have a single element": "{call}, ...)`{at} gets several numbers; log their .mean()",
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
ROWS = (
    "the data set yields full batches (batch_size=None), and each rank takes its rows of every "
    "tensor ({said}{at}); a tensor of two such dimensions, as of a graph, cannot be shared: yield "
    "it as a sample (batch_size=1), or use strategy=single"
)
"""What is said about errors of shapes in a batch that a data set has made."""
OF_SHARDS = re.compile(
    "DTensor|sharding strategy|Sharding propagation|mesh comm|tensor subclasses|0-d tensor|aten::?"
    "|not allocated yet|storage of size 0|functorch transform|used in the graph|c10d"
    "|RegisterPostBackward|deepcopy|sparse tensor|SparseC|TensorWrapper|[Ii]nference tensor"
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
    """Reject optimizers that PyTorch computes wrongly on shards."""
    for optimizer in optimizers:
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        # Others than SGD update the real view of a parameter, which of a shard is a copy.
        complex_shards = [p for p in parameters if isinstance(p, DTensor) and p.is_complex()]
        if complex_shards and not isinstance(optimizer, SGD):
            raise UserError(
                f"strategy: {type(optimizer).__name__} cannot update shards of complex parameters; "
                "use torch.view_as_complex of real ones, SGD, or strategy=ddp"
            )


def reject_saved_shards(checkpoint: dict[str, Any]) -> None:
    """Reject shards that a callback or a task saves: all ranks would resume from the first's."""
    entries = {**checkpoint, **checkpoint.get("callbacks", {})}
    gathered = {"state_dict", "optimizer_states", "averages", "callbacks"}
    for name, entry in entries.items():
        if name not in gathered and any(isinstance(leaf, DTensor) for leaf in tree_leaves(entry)):
            raise UserError(
                f"checkpoint: {name} has shards of weights, and a file has those of one rank; keep "
                "full ones, copied in `with self.trainer.strategy.full_parameters(self):`, leave "
                "averages to onecurve.ExponentialMovingAverage, or use strategy=ddp"
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


def reject_unordered(task: nn.Module, optimizers: Iterable[Optimizer], ranks: Ranks) -> None:
    """Reject optimizers of parameters in another order on some ranks: states go by their place."""
    names = {parameter: name for name, parameter in task.named_parameters()}
    groups = (group["params"] for optimizer in optimizers for group in optimizer.param_groups)
    ordered = [names.get(parameter, "") for group in groups for parameter in group]
    if not are_alike(ordered, None, ranks.device):
        raise UserError(
            f"strategy: an optimizer of {type(task).__name__} has its parameters in another order "
            "on some ranks, perhaps from a set, whose order no resume knows either; give it a "
            "list, such as [p for p in self.parameters() if p in chosen]"
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


def explain_error(
    error: BaseException, module: nn.Module, strategy: str, loaders: Sequence[Any] = ()
) -> UserError | None:
    """Explain an error of PyTorch in one line; None for any other error.

    Args:
        error: The error.
        module: The task.
        strategy: The name of the strategy.
        loaders: The loaders of the batch under way.
    """
    words = next((words for words in WORDS if words in str(error)), "")
    line = WORDS.get(words) if words != IN_PLACE or is_sharded(module) else None
    if line is None and is_sharded(module) and _is_of_shards(error):
        line = SHARDED
    shared = [loader for loader in loaders if isinstance(loader, SharedLoader)]
    cuts = any(loader.batch_sampler is None for loader in shared)
    if line is None and cuts and re.search("shape|size", str(error)):
        line = ROWS
    if line is None or (words in (TIMEOUT, CLOSED) and not _calls_the_network(error)):
        return None
    said = in_short(error, 80) or type(error).__name__
    rank = dist.get_rank() if dist.is_initialized() else 0
    call, task, at = str(error).partition(",")[0], type(module).__name__, place_of(error)
    line = line.format(task=task, said=said, rank=rank, at=at, call=call)
    return UserError(f"strategy={strategy}: {line}")


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


class Outputs:
    """Checks what `training_step` returns in automatic optimization."""

    def __init__(self) -> None:
        self._reported_none = False

    def check(self, task: LightningModule, output: Any, strategy: str) -> None:
        """Reject what is no loss; None skips a batch in one process, and is reported once."""
        if not task.automatic_optimization:
            return
        _reject_output(task, output)
        if output is not None or self._reported_none:
            return
        if task.trainer.world_size > 1:
            raise UserError(
                f"strategy={strategy}: {_where(task, 'training_step')} returned None, which skips "
                "a batch in one process alone; return the loss times 0, set automatic_optimization "
                "= False if the step calls its optimizer itself, or use strategy=single"
            )
        self._reported_none = True
        say(
            f"strategy={strategy}: {_where(task, 'training_step')} returned None, which skips a "
            "batch; if that is not meant, return the loss"
        )


def reject_without_gradient(task: LightningModule, loss: Tensor) -> None:
    """Reject a loss that no backward pass can begin with."""
    if loss.requires_grad or is_overridden("backward", task):
        return
    raise UserError(
        f"{_where(task, 'training_step')} returned a loss without a gradient; leave out .detach() "
        "and torch.no_grad(), and compute it from parameters that are not frozen"
    )


@contextmanager
def optimizers_explained(task: LightningModule) -> Iterator[None]:
    """Explain that Lightning cannot use what `configure_optimizers` returned, such as a class."""
    try:
        yield
    except (AttributeError, LookupError) as error:
        if CONFIGURE in {frame.name for frame in extract_tb(error.__traceback__)}:
            raise
        raise UserError(
            f"{_where(task, CONFIGURE)} returned what Lightning cannot use ({in_short(error)}); "
            "return an optimizer, or [optimizer], [scheduler]: objects, and not their classes"
        ) from error


def report_no_optimizer(task: LightningModule, optimizers: Iterable[Optimizer]) -> None:
    """Say so if a task trains nothing."""
    if not have_no_optimizer(optimizers):
        return
    what = f"{type(task).__name__} has no {CONFIGURE}"
    if is_overridden(CONFIGURE, task):
        what = f"{_where(task, CONFIGURE)} returned None"
    say(f"{what}: nothing is trained; return an optimizer, such as torch.optim.Adam(...)")


def _reject_output(task: LightningModule, output: Any) -> None:
    loss = output
    if isinstance(output, Mapping):
        loss = output.get("loss")
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return
    step = _where(task, "training_step")
    if output is None:
        code = _code(task, "training_step")
        if code is not None and _returns_nothing(code):
            raise UserError(f"{step} returns nothing; end it with `return loss`")
    elif loss is None:
        keys = ", ".join(map(str, output)) or "none"
        raise UserError(f"{step} returned a dict without a loss (keys: {keys}); add 'loss'")
    elif isinstance(loss, Tensor):
        raise UserError(
            f"{step} returned a tensor of shape {tuple(loss.shape)}, and a loss is one number; "
            "return its .mean()"
        )
    else:
        returned = f"{type(loss).__name__} ({in_short(loss, 30)})"
        raise UserError(f"{step} returned a {returned}; return the loss alone, and not by .item()")


def _where(task: LightningModule, method: str) -> str:
    code = _code(task, method)
    at = "" if code is None else f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"
    return f"{method} of {type(task).__name__}{at}"


def _code(task: LightningModule, method: str) -> CodeType | None:
    function = inspect.unwrap(getattr(type(task), method))
    return getattr(function, "__code__", None)


def _returns_nothing(code: CodeType) -> bool:
    """Whether its source has no `return` with a value, not even in a comment."""
    try:
        return re.search(r"\breturn\b[ \t]*[^\s#]", inspect.getsource(code)) is None
    except OSError:
        return False  # its source is not there
