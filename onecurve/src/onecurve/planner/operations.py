"""The operations of a layer's passes, recorded on fake tensors: FLOPs, bytes moved, bytes kept."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..compat.of_torch import (
    TorchDispatchMode,
    address_of,
    argument_names,
    flops_of,
    is_in_place,
    tensor_leaves,
)

Numbers = NDArray[np.float64]

ATTENTION = "scaled_dot_product"
aten = torch.ops.aten
WeakRef: Any = StorageWeakRef  # PyTorch declares no types of it


class Operation(NamedTuple):
    """What one operation computes, in 16 bits if `low`, and bytes by the numbers of storages."""

    name: str
    flops: float
    causal: bool
    reads: dict[int, float]
    writes: dict[int, float]
    low: bool


class Work(NamedTuple):
    """The operations of a pass, a column of numbers for each property."""

    flops: Numbers  # for each sample, as MFU counts them: without regard to causal masks
    skipped: Numbers  # what of `flops` a causal mask saves
    is_attention: Numbers
    bytes: Numbers  # moved for each sample
    fixed: Numbers  # bytes moved whatever the number of samples, such as weights
    low: Numbers  # whether it computes in 16 bits


class Recorder(TorchDispatchMode):
    """Records the operations that run within, in order, and the memory that they allocate."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self._known: dict[int, tuple[Any, int]] = {}
        self._allocated: dict[int, tuple[Any, float]] = {}
        self._numbers = 0

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's storage, as an address is used again once it is freed."""
        storage = tensor.untyped_storage()
        address = address_of(storage)
        known = self._known.get(address)
        if known is None or known[0].expired():
            self._numbers += 1
            known = self._known[address] = (WeakRef(storage), self._numbers)
        return known[1]

    def held(self) -> dict[int, float]:
        """Bytes that were allocated within and are not freed, by the number of the storage."""
        return {
            number: size
            for number, (storage, size) in self._allocated.items()
            if not storage.expired()
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace == "prim":
            return result
        inputs = tensor_leaves((args, kwargs))
        reads = {self.number(tensor): _size(tensor) for tensor in inputs}
        outputs = tensor_leaves(result)
        writes = {self.number(tensor): _size(tensor) for tensor in outputs}
        is_view = not is_in_place(func) and all(number in reads for number in writes)
        if not is_in_place(func):
            for tensor in outputs:
                if (number := self.number(tensor)) not in reads:
                    storage = tensor.untyped_storage()
                    self._allocated[number] = (WeakRef(storage), float(storage.nbytes()))
        if is_view or func.overloadpacket in NO_WORK:
            return result
        count = flops_of(func)
        flops = float(count(*args, **kwargs, out_val=result)) if count else 0.0
        given_by_name = dict(zip(argument_names(func), args, strict=False)) | kwargs
        causal = ATTENTION in str(func) and bool(given_by_name.get("is_causal"))
        low = any(tensor.dtype in LOW for tensor in inputs)
        self.operations.append(Operation(str(func), flops, causal, reads, writes, low))
        return result


LOW = (torch.bfloat16, torch.float16)
NO_WORK = {aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.detach}


def grows_with(size: float, batch: int) -> bool:
    """Whether so many bytes may be a tensor with a row for each of `batch` samples, a prime."""
    return size % batch == 0


def work(operations: list[Operation], kept: set[int], fused: bool, batch: int) -> Work:
    """The columns of some operations.

    Args:
        operations: In order, of a forward or a backward pass.
        kept: Numbers of storages that are read later.
        fused: Whether consecutive operations without FLOPs are one pass over memory, which reads
            what was computed before it, and writes what is read after it.
        batch: Samples that were recorded, a prime.
    """
    moved = [[*each.reads.values(), *each.writes.values()] for each in operations]
    if fused:
        moved = _fused(operations, kept)
    rows = []
    for each, sizes in zip(operations, moved, strict=True):
        grows = sum(size for size in sizes if grows_with(size, batch))
        flops = each.flops / batch
        skipped = flops / 2 if each.causal else 0.0
        traffic = (grows / batch, sum(sizes) - grows)
        rows.append((flops, skipped, ATTENTION in each.name, *traffic, each.low))
    columns = np.array(rows, dtype=np.float64).reshape(-1, len(Work._fields)).T
    return Work(*columns)


def _fused(operations: list[Operation], kept: set[int]) -> list[list[float]]:
    last_read: dict[int, int] = {}
    for index, operation in enumerate(operations):
        last_read |= dict.fromkeys(operation.reads, index)
    moved: list[list[float]] = [[] for _ in operations]
    start = 0
    while start < len(operations):
        stop = start + 1
        if not operations[start].flops:
            while stop < len(operations) and not operations[stop].flops:
                stop += 1
        written: dict[int, float] = {}
        reads: dict[int, float] = {}
        for operation in operations[start:stop]:
            reads |= {n: size for n, size in operation.reads.items() if n not in written}
            written |= operation.writes
        needed = [size for n, size in written.items() if n in kept or last_read.get(n, 0) >= stop]
        moved[start] = [*reads.values(), *needed]
        start = stop
    return moved


def _size(tensor: Tensor) -> float:
    """Bytes that are read or written: of an expanded tensor, those of its storage."""
    return float(min(tensor.nbytes, tensor.untyped_storage().nbytes()))
