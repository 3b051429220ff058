"""What tasks do with the numbers of parameters, for parameters that are sharded.

PyTorch would ignore ``parameter.data = value`` without a word: the numbers of a DTensor are those
of a tensor within it, and the assignment is to what is around that one. So a weight that is
bounded, or the weight of a teacher, by assignment would never change.

What a hook draws for a parameter, each rank would draw for its shard: other numbers than in one
process, and on a CPU the same ones for each shard. It draws them for the full parameter. So does
what PyTorch has for full tensors alone, such as `fill_diagonal_` and ``nn.init.orthogonal_``.

It would give Python a rank's addend of a sum or a norm, and drop what is written to rows that it
had to gather for that (``weight[0] = 0``, ``weight.narrow(0, 0, 3).normal_()``).

The fused kernels of SGD and Adagrad, which PyTorch has for full parameters alone, update shards.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..compat.of_torch import (
    is_in_place,
    local_shard,
    operators_of_shards,
    tree_map_only,
)
from ..compat.patching import replaced
from .fsdp.state import cut_like

_aten = torch.ops.aten
OF_FULL = (
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
    _aten.eye.m_out,
    _aten.tril_.default,
    _aten.triu_.default,
    _aten.fill_diagonal_.default,
    _aten.renorm_.default,
)
IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__")
VIEWS = (
    *("narrow", "select", "unbind", "diagonal"),
    *("chunk", "split", "tensor_split", "hsplit", "vsplit"),
)
READ = _aten._local_scalar_dense.default
FUSED = (
    _aten._fused_sgd_.default,
    _aten._fused_sgd_.tensor_lr,
    _aten._fused_adagrad_.default,
    _aten._fused_adagrad_.tensor_lr,
)


class Rows(DTensor):
    """Rows that were gathered from other ranks: what changes them in place changes the shards."""

    __slots__ = ()


def _changing(name: str) -> Any:
    @wraps(getattr(Tensor, name))
    def changed(rows: Any, *args: Any, **options: Any) -> Any:
        getattr(super(Rows, rows), name)(*args, **options)
        _put_back(rows)
        return rows

    return changed


for _name in dir(Tensor):
    if (_name.endswith("_") and not _name.startswith("_")) or _name in IN_PLACE:
        setattr(Rows, _name, _changing(_name))


@contextmanager
def as_if_full() -> Iterator[None]:
    """Within the context, shards are assigned, drawn, read and written like full parameters."""
    handlers = {**dict.fromkeys(OF_FULL, _of_full), **dict.fromkeys(FUSED, _update)}
    methods = {"data": property(_data, _assign), "copy_": _copy}
    methods |= {name: _viewing(name) for name in ("__getitem__", *VIEWS)}
    methods |= {name: _writing(name) for name in ("__setitem__", "fill_diagonal_")}
    with ExitStack() as stack:
        stack.enter_context(operators_of_shards({**handlers, READ: _read}))
        for name, method in methods.items():
            stack.enter_context(replaced(DTensor, name, method))
        for name in VIEWS:
            stack.enter_context(replaced(torch, name, _by_method(getattr(torch, name))))
        yield


def _data(parameter: Any) -> Tensor:
    return Tensor.data.__get__(parameter)  # type: ignore[attr-defined, no-any-return]


def _assign(parameter: Any, value: Tensor) -> None:
    if (value.shape, value.dtype) == (parameter.shape, parameter.dtype):
        _data(parameter).copy_(value)
    else:
        Tensor.data.__set__(parameter, value)  # type: ignore[attr-defined]


def _update(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    args, options = tree_map_only(DTensor, local_shard, (args, options))
    operator(*args, **options)


def _of_full(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    shard = options.get("out", args[0])
    args, options = tree_map_only(DTensor, DTensor.full_tensor, (args, options))
    made: Tensor = cut_like(operator(*args, **options), shard)
    if not is_in_place(operator):
        return made
    local_shard(shard).copy_(local_shard(made))
    return shard  # type: ignore[no-any-return]


def _read(operator: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return operator(args[0].full_tensor())


def _viewing(name: str) -> Any:
    method = getattr(Tensor, name)

    @wraps(method)
    def viewed(shard: Any, *args: Any, **options: Any) -> Any:
        def view(tensor: Any) -> Any:
            return method(tensor, *args, **options)

        made = view(shard)
        if not isinstance(made, tuple | list):
            return _written_back(made, shard, view)
        parts = enumerate(made)
        return tuple(_written_back(part, shard, _item_of(view, at)) for at, part in parts)

    return viewed


def _by_method(function: Any) -> Any:
    @wraps(function)
    def called(tensor: Any, *args: Any, **options: Any) -> Any:
        if isinstance(tensor, DTensor):
            return getattr(tensor, function.__name__)(*args, **options)
        return function(tensor, *args, **options)

    return called


def _item_of(view: Callable[[Any], Any], at: int) -> Callable[[Any], Any]:
    return lambda tensor: view(tensor)[at]


def _written_back(rows: Any, shard: Any, view: Callable[[Any], Any]) -> Any:
    """Write back what is changed in place, unless it is a view of the shard."""
    if not isinstance(rows, DTensor) or _is_tracked(rows):
        return rows
    if isinstance(shard, Rows) or not _is_view(rows, shard):
        rows.__class__ = Rows
        vars(rows)["of"] = shard, view
    return rows


def _put_back(rows: Any) -> None:
    if of := vars(rows).get("of"):
        shard, view = of
        now = rows.detach().full_tensor()
        _change(shard, lambda full: view(full).copy_(now))


def _change(shard: Any, change: Callable[[Tensor], Any]) -> None:
    """Change the full tensor in place, take the shard of it, and write back what that is of."""
    full = shard.detach().full_tensor().clone()
    change(full)
    local_shard(shard).copy_(local_shard(cut_like(full, shard)))
    _put_back(shard)


def _is_tracked(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _is_view(rows: DTensor, shard: DTensor) -> bool:
    """Whether nothing was gathered: all ranks answer alike, also one with an empty shard."""
    return [each.is_replicate() for each in rows.placements] == [
        each.is_replicate() for each in shard.placements
    ]


def _writing(name: str) -> Any:
    method = getattr(Tensor, name)

    @wraps(method)
    def written(shard: Any, *args: Any, **options: Any) -> Any:
        if _is_tracked(shard):
            return method(shard, *args, **options)
        given = tree_map_only(DTensor, DTensor.full_tensor, args)
        _change(shard, lambda full: method(full, *given, **options))
        return shard

    return written


def _copy(shard: Any, source: Tensor, *args: Any) -> Any:
    if not isinstance(source, DTensor):
        source = cut_like(source.expand(shard.shape), shard)
    return Tensor.copy_(shard, source, *args)
