"""What a rank of a real run holds, counted: bytes by kind, for what a plan says to be compared."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class Saved:
    """Bytes that wait for backward passes, by storage; parameters are no activations."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.owners: Counter[int] = Counter()
        self.sizes: dict[int, int] = {}
        self.now = self.most = 0
        self.hooks = saved_tensors_hooks(self.pack, lambda packed: packed.tensor)

    def pack(self, tensor: Tensor) -> "Packed":
        return Packed(self, tensor, not self.is_parameter(tensor))

    def is_parameter(self, tensor: Tensor) -> bool:
        base = tensor if tensor._base is None else tensor._base
        if isinstance(base, nn.Parameter):
            return True
        address = tensor.untyped_storage().data_ptr()
        # FSDP2 puts what it has gathered into the place of its shards.
        return any(
            address == getattr(held, "_local_tensor", held).untyped_storage().data_ptr()
            for held in self.module.parameters()
            if not held.is_meta
        )

    def add(self, address: int, size: int) -> None:
        self.owners[address] += 1
        if self.owners[address] == 1:
            self.sizes[address] = size
            self.now += size
            self.most = max(self.most, self.now)

    def take(self, address: int) -> None:
        self.owners[address] -= 1
        if self.owners[address] == 0:
            self.now -= self.sizes[address]


class Packed:
    def __init__(self, saved: Saved, tensor: Tensor, counts: bool) -> None:
        self.saved, self.counts = saved, counts
        # The tensor itself would keep its graph.
        self.tensor = tensor
        self.address = tensor.untyped_storage().data_ptr()
        if counts:
            saved.add(self.address, tensor.untyped_storage().nbytes())

    def __del__(self) -> None:
        if self.counts:
            self.saved.take(self.address)


class Count(Callback):
    """Writes what this rank holds at the end of the second step: `held_RANK.json`."""

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 1:
            self.saved = Saved(pl_module)
            self.saved.hooks.__enter__()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx != 1:
            return
        self.saved.hooks.__exit__(None, None, None)
        held = {
            "parameters": sum(map(local_bytes, pl_module.parameters())),
            "gradients": sum(local_bytes(each.grad) for each in pl_module.parameters()),
            "optimizer": sum(
                local_bytes(value)
                for state in trainer.optimizers[0].state.values()
                for value in state.values()
            ),
            "activations": self.saved.most,
            "buffers": sum(map(local_bytes, pl_module.buffers())),
        }
        path = Path(trainer.default_root_dir) / f"held_{trainer.global_rank}.json"
        path.write_text(json.dumps(held))


def local_bytes(value: Any) -> int:
    """Bytes that a tensor, or its shard, takes on this rank."""
    if not isinstance(value, torch.Tensor) or value.is_meta:
        return 0
    local = value.to_local() if hasattr(value, "to_local") else value
    return int(local.numel() * local.element_size())
