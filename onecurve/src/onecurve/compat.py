"""Private names of PyTorch, Lightning and Hydra that are used, each with what would replace it.

Each is imported where it is asked for: the command line needs Hydra's before torch is there.
"""

from argparse import ArgumentParser
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from lightning.pytorch.overrides.distributed import (
        _IndexBatchSamplerWrapper as IndexBatchSamplerWrapper,
    )

__all__ = [
    "IndexBatchSamplerWrapper",
    "at_end_of_backward",
    "hydra_options",
    "keeps_graph",
    "split_sweep",
]


def __getattr__(name: str) -> Any:
    """Import Lightning's class at its first use: https://peps.python.org/pep-0562/.

    Lightning reads what was predicted from this class alone; a public way to say it would do.
    """
    if name != "IndexBatchSamplerWrapper":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper

    return _IndexBatchSamplerWrapper


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Call a function once the backward pass under way has ended, before anybody sees gradients.

    DistributedDataParallel and FSDP2 do so; a public hook of the whole pass would do.
    """
    import torch

    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(function)


def keeps_graph() -> bool:
    """Whether the backward pass under way was asked to retain_graph.

    An autograd function that runs a pass of its own has to know; autograd tells nobody in public.
    """
    import torch

    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def hydra_options() -> ArgumentParser:
    """The parser of Hydra's own options; one that raises instead of printing its usage would do."""
    from hydra._internal.utils import get_args_parser

    return get_args_parser()


def split_sweep(overrides: "list[Override]") -> list[list[str]]:
    """The overrides of every job of a grid; Hydra tells nobody in public before it runs them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    return [list(job) for job in BasicSweeper.split_arguments(overrides, None)[0]]
