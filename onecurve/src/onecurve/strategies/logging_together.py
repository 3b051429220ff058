"""What the steps of several ranks log, agreed on before anything is averaged.

A task may call `self.log` only for some batches. Ranks that average a value for which others do not
wait hang, or take another collective's numbers. So a step's calls are kept, the ranks compare their
names in a single small message, and only then are they made.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, cast
from zlib import crc32

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor

from ..errors import UserError
from .redirect import replaced


class LoggingTogether:
    """Compares names over a group of ranks, on the CPU: nobody waits for a GPU.

    Args:
        device: Where the ranks compute.
        group: The ranks that see different samples; None stands for all.
    """

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None) -> None:
        self.group = group
        if device.type != "cpu":
            ranks = None if group is None else dist.get_process_group_ranks(group)
            self.group = cast(dist.ProcessGroup, dist.new_group(ranks, backend="gloo"))

    @contextmanager
    def step(self, module: LightningModule, name: str) -> Iterator[None]:
        """Keep what a step logs until all ranks have come to its end.

        Args:
            module: The task.
            name: Of the step.

        Raises:
            UserError: If they log different names.
        """
        kept: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = []
        log = module.log

        def keep(name: str, value: Any, *args: Any, **options: Any) -> None:
            # A step may go on to work on the tensor in place.
            value = value.detach().clone() if isinstance(value, Tensor) else value
            kept.append((name, value, args, options))

        with log_replaced(module, keep):
            yield
        # What rank 0 logs for itself is not averaged.
        names = [key for key, _, _, options in kept if not options.get("rank_zero_only")]
        self.compare(names, name)
        for key, value, args, options in kept:
            log(key, value, *args, **options)

    def compare(self, names: Sequence[str], step: str) -> None:
        """Refuse names that are not the same on all ranks.

        Raises:
            UserError: On every rank.
        """
        number = crc32("\\n".join(names).encode())
        extremes = torch.tensor([number, -number])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self.group)
        if extremes[0] == -extremes[1]:
            return
        of_ranks: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(of_ranks, list(names), group=self.group)
        everywhere = set.intersection(*map(set, of_ranks))
        some = sorted(set().union(*of_ranks) - everywhere) or ["in another order or number"]
        raise UserError(
            f"self.log: {step} logs {', '.join(some[:3])} on some ranks only, so it cannot be "
            "averaged; log it for every batch, for instance 0 where there is nothing to count, "
            "or a torchmetrics metric"
        )


LIGHTNINGS = tuple(signature(LightningModule.log).parameters)


def synced(log: Callable[..., None]) -> Callable[..., None]:
    """A task's `log` or `log_dict` that averages over the ranks, whatever it is told."""
    parameters = signature(log).parameters
    names = list(parameters)
    if "sync_dist" in names:
        place = names.index("sync_dist")
    elif any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        place = len(LIGHTNINGS)  # the task's own, which passes on what it is given by name
    else:
        return log  # the task's own, which calls Lightning's in its way

    def synced_log(*args: Any, **options: Any) -> None:
        if len(args) > place:
            args = (*args[:place], True, *args[place + 1 :])
        else:
            options["sync_dist"] = True
        log(*args, **options)

    synced_log.is_synced = True  # type: ignore[attr-defined]
    return synced_log


@contextmanager
def log_replaced(module: LightningModule, log: Callable[..., None]) -> Iterator[None]:
    """Let another function stand for ``module.log`` meanwhile, and for what `log_dict` calls."""

    def log_dict(values: Any, *args: Any, **options: Any) -> None:
        for name, value in values.items():
            log(name, value, *args, **options)

    with replaced(module, "log", log), replaced(module, "log_dict", log_dict):
        yield
