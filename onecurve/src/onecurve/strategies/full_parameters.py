"""A task whose parameters are sharded, or on other ranks, with full parameters for a while.

Between fits a task keeps this rank's part, so that another fit or test can go on with it. It may be
loaded like any module (`stay_usable`); what else needs its parameters does so in a context.

Without it, between steps, PyTorch would get some reads and changes of shards wrong without a word
(`sharded_data`). Right: ``weight.data = value``, which PyTorch does to what is around the shard;
draws (``nn.init.normal_(weight)``), of which each rank would draw its own; a norm, or another
number (``.item()``), which would be a rank's addend: Lightning's ``grad_norm`` takes many.
Rejected: rows that are gathered to be taken (``weight[0] = 0``), because changes of them are lost.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ..compat.of_torch import (
    is_in_place,
    local_shard,
    operators_of_shards,
    tree_leaves,
    tree_map_only,
    without_handler,
)
from ..compat.patches import replaced
from ..errors import UserError
from .fsdp.sharding import reshard
from .fsdp.state import shard_like
from .mesh.ranks import Ranks


@contextmanager
def full_parameters(
    task: LightningModule, state: Mapping[str, Any], ranks: Ranks
) -> Iterator[None]:
    """Replace shards, and tensors of other ranks, by full tensors; write back what has changed.

    Args:
        task: The task that the ranks share.
        state: The full state of the task on rank 0; empty on the others.
        ranks: All ranks, which call this together.
    """
    reshard(task)
    full_of: dict[int, Any] = {}
    replaced = []
    with ExitStack() as stack:
        for holder, name, tensor, full in _each_full(task, state, ranks):
            if isinstance(tensor, nn.Parameter):
                full = nn.Parameter(full, tensor.requires_grad)
            replaced.append((holder, name, tensor))
            holder[name] = full_of.setdefault(id(tensor), full)
        for module in task.modules():
            if isinstance(module, FSDPModule):
                # It would gather the shards, which are those of before.
                stack.callback(module.register_forward_pre_hook(_rejected, prepend=True).remove)
        try:
            yield
            with torch.no_grad():
                for holder, name, tensor in replaced:
                    if not tensor.is_meta:
                        now = shard_like(holder[name].detach(), tensor)
                        local_shard(tensor).copy_(local_shard(now))
        finally:
            for holder, name, tensor in replaced:
                holder[name] = tensor


def _each_full(
    task: nn.Module, state: Mapping[str, Any], ranks: Ranks
) -> Iterator[tuple[dict[str, Any], str, Tensor, Tensor]]:
    places = {
        f"{path}.{name}".lstrip("."): (holder, name)
        for path, module in task.named_modules(remove_duplicate=False)
        for holder in (module._parameters, module._buffers)
        for name in holder
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

    def loads(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        reshard(task)
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if (key := f"{prefix}{name}") in state:
                state[key] = shard_like(state[key], tensor)

    def called(module: nn.Module, _: Any) -> None:
        trainer = task._trainer
        is_apart = any(each.is_meta for each in module.parameters(recurse=False))
        if is_apart and (trainer is None or trainer.state.stopped):
            raise UserError(
                f"strategy={strategy}: {type(module).__name__} of {type(task).__name__} is called "
                "after the run, and another rank holds its weights; call it on all ranks in `with "
                "trainer.strategy.full_parameters(task):`, or use strategy=ddp"
            )

    for module in task.modules():
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if any(isinstance(each, DTensor) or each.is_meta for each in tensors):
            module.register_load_state_dict_pre_hook(loads)  # type: ignore[no-untyped-call]
        if any(each.is_meta for each in tensors):
            module.register_forward_pre_hook(called)


_aten = torch.ops.aten
DRAWS = (
    _aten.normal_.default,
    _aten.uniform_.default,
    _aten.bernoulli_.float,
    _aten.bernoulli.default,
    _aten.exponential_.default,
    _aten.log_normal_.default,
    _aten.cauchy_.default,
    _aten.geometric_.default,
    getattr(_aten.random_, "from"),
    _aten.rand_like.default,
    _aten.randn_like.default,
)
ROWS = (
    _aten.select.int,
    _aten.slice.Tensor,
    _aten.split.Tensor,
    _aten.split_with_sizes.default,
    _aten.unbind.int,
    _aten.diagonal.default,
)
READ = _aten._local_scalar_dense.default
NORM = _aten.linalg_vector_norm.default


@contextmanager
def sharded_data(strategy: str) -> Iterator[None]:
    """Within the context, accesses to shards have the result of full tensors or raise an error."""

    def rows(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        with without_handler(operator):
            taken = operator(*args, **options)
        if not _is_tracked(args[0]) and any(_is_gathered(each, args[0]) for each in _shards(taken)):
            raise UserError(
                f"strategy={strategy}: rows or elements of a sharded weight or gradient are taken "
                "outside of its module, where changes of them would be lost; read and change "
                "weights in `with self.trainer.strategy.full_parameters(self):`, or use "
                "strategy=ddp"
            )
        return taken

    read: dict[int, list[ref[Tensor]]] = {}

    def data(parameter: Any) -> Tensor:
        value = _data(parameter)
        if isinstance(parameter, nn.Parameter):
            alive = [each for each in read.get(id(parameter), ()) if each() is not None]
            read[id(parameter)] = [*alive, ref(value)]
        return value

    def assign(parameter: Any, value: Tensor) -> None:
        # What was read keeps its values, for example while an average is in the weight's place.
        for reference in read.pop(id(parameter), ()):
            if (before := reference()) is not None:
                local_shard(before).data = local_shard(before).clone()
        _assign(parameter, value)

    handlers = {**dict.fromkeys(DRAWS, _draw), READ: _read, NORM: _norm}
    with ExitStack() as stack:
        stack.enter_context(operators_of_shards({**handlers, **dict.fromkeys(ROWS, rows)}))
        stack.enter_context(replaced(DTensor, "data", property(data, assign)))
        yield


def _data(parameter: Any) -> Tensor:
    return Tensor.data.__get__(parameter)  # type: ignore[attr-defined, no-any-return]


def _assign(parameter: Any, value: Tensor) -> None:
    if (value.shape, value.dtype) != (parameter.shape, parameter.dtype):
        Tensor.data.__set__(parameter, value)  # type: ignore[attr-defined]
    else:
        _data(parameter).copy_(shard_like(value, parameter))


def _draw(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    """Draw for the full tensor, on every rank the same, and keep this rank's shard."""
    shard = args[0]
    args, options = tree_map_only(DTensor, DTensor.full_tensor, (args, options))
    drawn: Tensor = shard_like(operator(*args, **options), shard)
    if not is_in_place(operator):
        return drawn
    local_shard(shard).copy_(local_shard(drawn))
    return shard  # type: ignore[no-any-return]


def _read(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return operator(args[0].full_tensor())


def _norm(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A norm that is one number is a plain tensor, unless a loss may be computed from it."""
    with without_handler(operator):
        norm = operator(*args, **options)
    return norm if norm.ndim or _is_tracked(args[0]) else norm.full_tensor()


def _shards(tree: Any) -> list[DTensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, DTensor)]


def _is_tracked(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _is_gathered(rows: DTensor, shard: DTensor) -> bool:
    """Whether rows were gathered from other ranks: one with an empty shard answers alike."""
    here, full = ([each.is_replicate() for each in one.placements] for one in (rows, shard))
    return here != full
