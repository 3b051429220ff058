"""All of PyTorch, Lightning and others that is replaced, however briefly.

`replaced` rejects a module or a class of theirs that is not in this list. A test for each entry,
in tests/compat/test_patches.py, fails once PyTorch or Lightning makes it unnecessary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple


class Patch(NamedTuple):
    """What is replaced of another package.

    Attributes:
        names: Dotted names of functions, methods and attributes.
        why: What would be wrong, or slow, without it.
        until: The public thing that would make it unnecessary.
        lasts: When it is undone.
    """

    names: tuple[str, ...]
    why: str
    until: str
    lasts: str


PATCHES = {
    "attention": Patch(
        ("torch.nn.functional.scaled_dot_product_attention",),
        "with context parallelism attention needs the keys of all ranks; the planner records it",
        "a public context parallelism of PyTorch that takes plain tensors",
        "a call of the network",
    ),
    "batch_norm": Patch(
        ("torch.nn.functional.batch_norm",),
        "statistics of the global batch, on CPUs and with uneven shares",
        "SyncBatchNorm on CPUs, and with ranks that have no samples",
        "a fit or an evaluation",
    ),
    "clipping": Patch(
        (
            "torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype",
            "torch.nn.utils.clip_grad._get_total_norm",
            "torch.nn.utils.clip_grad._clip_grads_with_norm_",
        ),
        "one norm over all ranks for whoever calls clip_grad_norm_, imported by name or not",
        "clip_grad_norm_ with a process group, for gradients on several meshes",
        "a fit or an evaluation",
    ),
    "shards": Patch(
        (
            "torch.distributed.tensor.DTensor.data",
            "torch.distributed.tensor.DTensor._op_dispatcher",
        ),
        "PyTorch loses what is assigned to a shard, or to rows of it, draws other numbers for it, "
        "and reads a rank's addend of a norm as a number, without a word",
        "DTensor that does these, or raises",
        "a fit or an evaluation",
    ),
    "gathers": Patch(
        ("torch.distributed.all_gather",),
        "a task that gathers rows by itself gets those of some ranks twice, without a word",
        "nothing: PyTorch does not know which ranks see the same samples",
        "a fit or an evaluation",
    ),
    "metrics": Patch(
        ("torchmetrics.metric.Metric.sync",),
        "metrics are summed over the ranks that see different samples, not over all",
        "a default process group of torchmetrics; a metric with one of its own cannot be copied",
        "a fit or an evaluation",
    ),
    "steps": Patch(
        (
            "lightning.pytorch.trainer.connectors.logger_connector.result._ResultMetric.to",
            "batch hooks of a callback that are Lightning's empty ones",
        ),
        "Lightning copies a value that is logged even if its device is right, and calls some fifty "
        "empty hooks in a step: 8 % and 4 % of an epoch",
        "Lightning that moves what is elsewhere alone, and skips hooks that are not overridden",
        "fit, validate or test of a run",
    ),
    "loops": Patch(
        (
            "on_run_start, _should_check_val_fx of the training epoch loop",
            "setup_data, on_advance_end, _iteration_based_training of the fit loop",
        ),
        "an epoch is resumed where it was, with its random numbers and its logs",
        "checkpoints of Lightning that hold the position and the generators' states",
        "a fit",
    ),
    "task": Patch(
        ("log, prepare, loss, forward, the steps and zero_grad of the task; log of callbacks",),
        "values count by sample; a step sees this rank's rows, or its parts",
        "nothing: these are the user's, and what a strategy is for",
        "a step, or a fit",
    ),
    "optimizers": Patch(
        ("step of an optimizer and _unscale_grads_ of the scaler, under pipeline alone",),
        "a rank has gradients of its own stages alone",
        "optimizers that pass over parameters on the meta device",
        "a fit",
    ),
    "compile": Patch(
        ("torch._dynamo.config.recompile_limit",),
        "layers of one class share a function, and each shape is a variant of it",
        "torch 2.15 as the floor, whose torch.compile takes recompile_limit",
        "a fit or an evaluation",
    ),
    "scipy": Patch(
        ("scipy.signal, while torchmetrics is imported",),
        "an eighth of a run's import time, for a name that SciPy has removed",
        "torchmetrics that imports it where it is needed",
        "the import",
    ),
}

OTHERS = ("torch", "lightning", "torchmetrics", "hydra", "omegaconf", "optuna")
REPLACED = {name for patch in PATCHES.values() for name in patch.names}


MISSING = object()


@contextmanager
def replaced(owner: Any, name: str, other: Any) -> Iterator[None]:
    """Replace an attribute or a method of one object, and restore it afterwards."""
    if isinstance(owner, ModuleType | type):
        is_module = isinstance(owner, ModuleType)
        path = owner.__name__ if is_module else f"{owner.__module__}.{owner.__qualname__}"
        is_theirs = path.partition(".")[0] in OTHERS
        assert not is_theirs or f"{path}.{name}" in REPLACED, f"{path}.{name} is not in patches.py"
    before = vars(owner).get(name, MISSING)
    setattr(owner, name, other)
    try:
        yield
    finally:
        if before is MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
