"""Gathers full tensors from the ranks' shards, shards full tensors, and keeps changes of weights.

A masked convolution changes its weights (``self.weight.data *= self.mask``), as does a layer that
bounds their norm. FSDP2 frees gathered parameters, and would lose the change (`KeptChanges`).
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.optim import Optimizer

from ...checkpoint.lazy_tensors import model_state_here
from ...compat.of_torch import tree_map_only, version_of
from ..differences import SUMS, sums_of


def gather(state: Any, keep: bool) -> Any:
    """Gather full tensors, one after the other. All ranks must call this.

    Returns:
        The same containers with full tensors on the CPU; an empty dictionary if not `keep`.
    """

    def full(tensor: Tensor) -> Tensor | None:
        tensor = tensor.detach()
        if isinstance(tensor, DTensor):
            # Axis by axis from the outermost, which FSDP2 has sharded last: PyTorch warns if
            # several axes are gathered at once.
            for axis in range(1, tensor.device_mesh.ndim):
                placements = [*[Replicate()] * axis, *tensor.placements[axis:]]
                tensor = tensor.redistribute(placements=placements)
            tensor = tensor.full_tensor()
        return tensor.cpu() if keep else None

    gathered = tree_map_only(Tensor, full, state)
    return gathered if keep else {}


def shard_like(full: Any, like: Any) -> Any:
    """Shard a tensor that every rank has in full like another one, without communication.

    Anything else, even a DTensor, is returned as it is; so is the tensor if `like` is not sharded.
    In place of one that another rank holds, on the meta device, `like` is returned.
    """
    if isinstance(like, Tensor) and like.is_meta:
        return like
    if not isinstance(like, DTensor) or not isinstance(full, Tensor) or isinstance(full, DTensor):
        return full
    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)


def load_full_state(module: nn.Module, state: Mapping[str, Any], strict: bool) -> None:
    """Load a rank's part of a full state."""
    shards = module.state_dict()
    here = model_state_here(state, shards)
    module.load_state_dict(
        {name: shard_like(value, shards.get(name)) for name, value in here.items()}, strict=strict
    )


@torch.no_grad()
def shard_optimizer_state(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Shard the ``state_dict()`` that the same optimizer has with unsharded parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def shards(value: Any, like: Tensor) -> Any:
        # Only tensors of the parameter's shape are sharded, not the count of steps, for example.
        is_alike = isinstance(value, Tensor) and value.shape == like.shape
        return shard_like(value, like) if is_alike else value

    entries = {
        number: {key: shards(value, parameters[number]) for key, value in entry.items()}
        for number, entry in state["state"].items()
        if not parameters[number].is_meta
    }
    return {**state, "state": entries}


class Gathered(nn.Parameter):
    """A gathered parameter that tracks whether it may have been changed.

    PyTorch's version counter misses changes through ``data``. Assigning another tensor to ``data``
    would make later passes use that one instead of the gathered one, so it is copied instead.
    """

    is_touched: bool
    version: int

    @classmethod
    def of(cls, parameter: Any) -> Self:
        """Change the class of a gathered parameter in place: FSDP2 reuses the object."""
        if not isinstance(parameter, cls):
            parameter.__class__ = cls
            parameter.is_touched, parameter.version = False, version_of(parameter)
        return parameter  # type: ignore[no-any-return]

    @property
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def data(self) -> Tensor:
        self.is_touched = True
        return nn.Parameter.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def data(self, value: Tensor) -> None:
        self.data.copy_(value)

    def was_changed(self) -> bool:
        """Whether the parameter may have changed since the last call of this method."""
        is_changed = self.is_touched or self.version != version_of(self)
        self.is_touched, self.version = False, version_of(self)
        return is_changed


class KeptChanges:
    """Keeps changes that a unit makes to its own parameters while FSDP2 has gathered them."""

    def __init__(self, unit: nn.Module) -> None:
        self._unit = unit
        self._shards = dict(unit.named_parameters())
        self._gathered: list[tuple[DTensor, Gathered]] = []

    def of_forward(self) -> None:
        """Keep changes that `forward` makes, by hooks inside those that gather and free."""
        self._unit.register_forward_pre_hook(self._begin)
        self._unit.register_forward_hook(self._keep, prepend=True)

    def of(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method so that its changes are kept."""

        @wraps(method)
        def kept(*args: Any, **options: Any) -> Any:
            self._begin()
            output = method(*args, **options)
            self._keep()
            return output

        return kept

    def zeroing(self, zero_grad: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `zero_grad`: gradients are those of shards, which a unit does not have gathered."""

        @wraps(zero_grad)
        def zeroed(set_to_none: bool = True) -> None:
            zero_grad(set_to_none)
            for shard in self._shards.values():
                if set_to_none:
                    shard.grad = None
                elif shard.grad is not None:
                    shard.grad.zero_()

        return zeroed

    # torch.compile would trace both, into a variant for every shape of a parameter.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _begin(self, *_: Any) -> None:
        """Find the gathered parameters, which are the same objects each time."""
        if self._gathered:
            return
        for name, parameter in self._unit.named_parameters():
            shard = self._shards.get(name)  # None of a part that a callback adds, which stays full
            if isinstance(shard, DTensor) and not isinstance(parameter, DTensor):
                self._gathered.append((shard, Gathered.of(parameter)))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _keep(self, *_: Any) -> None:
        for shard, parameter in self._gathered:
            if parameter.was_changed():
                _put_back(parameter, shard)
                setattr(shard, SUMS, sums_of(parameter))


@torch.no_grad()
def _put_back(full: Tensor, shard: DTensor) -> None:
    """Copy changed elements only: the gathered parameter may be rounded to a lower precision."""
    kept = shard.to_local()
    now = shard_like(full.detach(), shard).to_local().to(kept.device)
    kept.copy_(torch.where(now == kept.to(now.dtype), kept, now.to(kept.dtype)))
