"""What a layer changes about its own weights while they are gathered, put back into the shards.

A masked convolution does so (``self.weight.data *= self.mask``), and a layer that bounds its norms.
PyTorch frees what was gathered, and with it the change.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ...compat.of_torch import version_of
from .state import cut_like


class Gathered(nn.Parameter):
    """A parameter while it is whole, which knows whether it may have been changed.

    Changes through ``data`` are in no count of PyTorch's, and another tensor there would be what
    later passes see instead of what is gathered.
    """

    is_touched: bool
    version: int

    @classmethod
    def of(cls, parameter: Any) -> Self:
        """The same object: FSDP2 makes it once, and gathers into it."""
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
        """Whether it may have been since this was asked last."""
        is_changed = self.is_touched or self.version != version_of(self)
        self.is_touched, self.version = False, version_of(self)
        return is_changed


class KeptChanges:
    """What a unit changes of its own parameters while FSDP2 has gathered them."""

    def __init__(self, unit: nn.Module) -> None:
        self._unit = unit
        self._shards = dict(unit.named_parameters())
        self._gathered: list[tuple[DTensor, Gathered]] = []

    def of_forward(self) -> None:
        """Keep what `forward` changes, beneath the hooks that gather and free."""
        self._unit.register_forward_pre_hook(self._begin)
        self._unit.register_forward_hook(self._keep, prepend=True)

    def of(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The same method, with what it changes kept."""

        @wraps(method)
        def kept(*args: Any, **options: Any) -> Any:
            self._begin()
            output = method(*args, **options)
            self._keep()
            return output

        return kept

    def _begin(self, *_: Any) -> None:
        """Watch what is gathered: the same parameters each time."""
        if self._gathered:
            return
        for name, parameter in self._unit.named_parameters():
            shard = self._shards[name]
            if isinstance(shard, DTensor) and not isinstance(parameter, DTensor):
                self._gathered.append((shard, Gathered.of(parameter)))

    def _keep(self, *_: Any) -> None:
        """Put into this rank's shards what was changed."""
        for shard, parameter in self._gathered:
            if parameter.was_changed():
                _put_back(parameter, shard)


@torch.no_grad()
def _put_back(whole: Tensor, shard: DTensor) -> None:
    """This rank's part of what was changed; the rest, which may be rounded, stays what it was."""
    kept = shard.to_local()
    now = cut_like(whole.detach(), shard).to_local().to(kept.device)
    kept.copy_(torch.where(now == kept.to(now.dtype), kept, now.to(kept.dtype)))
