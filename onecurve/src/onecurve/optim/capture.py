"""CUDA graphs: what a step on a CPU does without."""

from typing import Any

from torch.optim import Optimizer


def never_captured(optimizer: Optimizer) -> None:
    """Let an optimizer on a CPU not ask at every step whether a CUDA graph is captured.

    It asks whether there is a GPU first. With Lightning's way of asking, which lets processes fork
    after it, that looks for the driver's library on the disk each time: some 150 us where there is
    none.
    """
    optimizer._accelerator_graph_capture_health_check = _nothing  # type: ignore[method-assign]


def _nothing(*_: Any) -> None:
    pass
