"""Reads and changes of sharded weights between steps that PyTorch would get wrong without a word.

Right: ``weight.data = value``, which PyTorch does to what is around the shard; draws
(``nn.init.normal_(weight)``), of which each rank would draw its own; a norm as a number
(``.item()``), which would be a rank's addend.

Rejected: rows that are gathered to be taken (``weight[0] = 0``), because changes of them are lost.
`full_parameters` is for these.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..compat.of_torch import (
    is_in_place,
    local_shard,
    operators_of_shards,
    tree_leaves,
    tree_map_only,
    without_handler,
)
from ..compat.patching import replaced
from ..errors import UserError
from .fsdp.state import cut_like

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


@contextmanager
def sharded_data(strategy: str) -> Iterator[None]:
    """Within the context, accesses to shards have the result of full tensors or raise an error."""

    def rows(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        with without_handler(operator):
            made = operator(*args, **options)
        if not _is_tracked(args[0]) and any(_is_gathered(each, args[0]) for each in _shards(made)):
            raise UserError(
                f"strategy={strategy}: rows or elements of a sharded weight or gradient are taken "
                "outside of its module, where changes of them would be lost; read and change "
                "weights in `with self.trainer.strategy.full_parameters(self):`, or use "
                "strategy=ddp"
            )
        return made

    handlers = {**dict.fromkeys(DRAWS, _draw), READ: _read}
    with ExitStack() as stack:
        stack.enter_context(operators_of_shards({**handlers, **dict.fromkeys(ROWS, rows)}))
        stack.enter_context(replaced(DTensor, "data", property(_data, _assign)))
        yield


def _data(parameter: Any) -> Tensor:
    return Tensor.data.__get__(parameter)  # type: ignore[attr-defined, no-any-return]


def _assign(parameter: Any, value: Tensor) -> None:
    if (value.shape, value.dtype) != (parameter.shape, parameter.dtype):
        Tensor.data.__set__(parameter, value)  # type: ignore[attr-defined]
    else:
        _data(parameter).copy_(cut_like(value, parameter))


def _draw(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    """Draw for the full tensor, on every rank the same, and keep this rank's shard."""
    shard = args[0]
    args, options = tree_map_only(DTensor, DTensor.full_tensor, (args, options))
    drawn: Tensor = cut_like(operator(*args, **options), shard)
    if not is_in_place(operator):
        return drawn
    local_shard(shard).copy_(local_shard(drawn))
    return shard  # type: ignore[no-any-return]


def _read(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return operator(args[0].full_tensor())


def _shards(tree: Any) -> list[DTensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, DTensor)]


def _is_tracked(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _is_gathered(rows: DTensor, shard: DTensor) -> bool:
    """Whether rows were gathered from other ranks: one with an empty shard answers alike."""
    return [each.is_replicate() for each in rows.placements] != [
        each.is_replicate() for each in shard.placements
    ]
