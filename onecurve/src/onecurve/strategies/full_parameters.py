"""A task whose parameters are sharded, or on other ranks, with full parameters for a while.

Between fits a task keeps this rank's part, so that another fit or test can go on with it. It may be
loaded like any module (`stay_usable`); what else needs its parameters does so in a context.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ..compat.of_torch import local_shard
from ..errors import UserError
from .fsdp.sharding import reshard
from .fsdp.state import cut_like
from .mesh.ranks import Ranks


@contextmanager
def full_parameters(
    task: LightningModule, module: nn.Module, state: Mapping[str, Any], ranks: Ranks
) -> Iterator[None]:
    """Replace shards, and tensors of other ranks, by full tensors; write back what has changed.

    Args:
        task: The task that the ranks share.
        module: The task, or one of its modules.
        state: The full state of the task on rank 0; empty on the others.
        ranks: All ranks, which call this together.
    """
    reshard(task)
    made: dict[int, Any] = {}
    parts = []
    with ExitStack() as stack:
        for holder, name, tensor, full in _each_full(task, module, state, ranks):
            if isinstance(tensor, nn.Parameter):
                full = nn.Parameter(full, tensor.requires_grad)
            parts.append((holder, name, tensor))
            holder[name] = made.setdefault(id(tensor), full)
        for part in module.modules():
            if isinstance(part, FSDPModule):
                # It would gather the shards, which are those of before.
                stack.callback(part.register_forward_pre_hook(_rejected, prepend=True).remove)
        try:
            yield
            with torch.no_grad():
                for holder, name, tensor in parts:
                    if not tensor.is_meta:
                        now = cut_like(holder[name].detach(), tensor)
                        local_shard(tensor).copy_(local_shard(now))
        finally:
            for holder, name, tensor in parts:
                holder[name] = tensor


def _each_full(
    task: nn.Module, module: nn.Module, state: Mapping[str, Any], ranks: Ranks
) -> Iterator[tuple[dict[str, Any], str, Tensor, Tensor]]:
    places = {
        f"{path}.{name}".lstrip("."): (holder, name)
        for path, part in task.named_modules(remove_duplicate=False)
        for holder in (part._parameters, part._buffers)
        for name in holder
        if part in {*module.modules()}
    }
    kinds = {name: (each.shape, each.dtype) for name, each in state.items() if name in places}
    box = [kinds]
    dist.broadcast_object_list(box)
    for path, (shape, dtype) in box[0].items():
        holder, name = places[path]
        tensor: Any = holder[name]
        full = torch.empty(shape, dtype=dtype, device=ranks.device)
        if path in state:
            full.copy_(state[path])
        ranks.copy_first(full, group=dist.group.WORLD)
        if isinstance(tensor, DTensor) or tensor.is_meta:
            device: Any = task.device if tensor.is_meta else tensor.device
            yield holder, name, tensor, full.to(device)


def _rejected(unit: nn.Module, _: Any) -> None:
    raise UserError(
        f"strategy.full_parameters: {type(unit).__name__} is called within the context, which is "
        "to read and change its weights; call it after the context, where it gathers them by itself"
    )


def stay_usable(task: LightningModule, strategy: str) -> None:
    """Let a task that ranks share load full states; calls after the run that cannot be are a line.

    Every rank has the full state that it loads, and takes its shards of it.
    """

    def loads(part: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        reshard(task)
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if (key := f"{prefix}{name}") in state:
                state[key] = cut_like(state[key], tensor)

    def called(part: nn.Module, _: Any) -> None:
        trainer = task._trainer
        is_apart = any(each.is_meta for each in part.parameters(recurse=False))
        if is_apart and (trainer is None or trainer.state.stopped):
            raise UserError(
                f"strategy={strategy}: {type(part).__name__} of {type(task).__name__} is called "
                "after the run, and another rank holds its weights; call it on all ranks in `with "
                "trainer.strategy.full_parameters(task):`, or use strategy=ddp"
            )

    for part in task.modules():
        own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        if any(isinstance(each, DTensor) or each.is_meta for each in own):
            part.register_load_state_dict_pre_hook(loads)  # type: ignore[no-untyped-call]
        if any(each.is_meta for each in own):
            part.register_forward_pre_hook(called)
