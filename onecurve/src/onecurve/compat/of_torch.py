"""Private names of PyTorch and Lightning that are used, each with what would make it unneeded."""

from collections.abc import Callable
from typing import Any

import torch

# Lightning reads what was predicted from this class alone; a public way to say it would do.
from lightning.pytorch.overrides.distributed import (
    _IndexBatchSamplerWrapper as IndexBatchSamplerWrapper,
)

__all__ = ["IndexBatchSamplerWrapper", "at_end_of_backward", "keeps_graph"]


def at_end_of_backward(function: Callable[[], None]) -> None:
    """Call a function once the backward pass under way has ended, before anybody sees gradients.

    DistributedDataParallel and FSDP2 do so; a public hook of the whole pass would do.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(function)


def keeps_graph() -> bool:
    """Whether the backward pass under way was asked to retain_graph.

    An autograd function that runs a pass of its own has to know; autograd tells nobody in public.
    """
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())
