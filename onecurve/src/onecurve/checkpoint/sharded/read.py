"""Reads a sharded checkpoint: every process only the tensors that it needs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from ..stored import STORED, model_state_here, optimizer_state_here
from .folder import complete_folder
from .torch_files import AVERAGES, MODEL, OPTIMIZERS, REST, ShardReader, without_hints


def read_rest(path: Path, weights_only: bool = True) -> dict[str, Any]:
    """Lightning's dictionary, in which tensors of the network and of optimizers have no memory."""
    folder = complete_folder(path)
    checkpoint: dict[str, Any] = torch.load(folder / REST, weights_only=weights_only)
    for key, stored in ShardReader(folder).read_metadata().state_dict_metadata.items():
        if not isinstance(stored, TensorStorageMetadata):
            continue
        tensor = torch.empty(stored.size, dtype=stored.properties.dtype, device="meta")
        setattr(tensor, STORED, (str(folder), key))
        kind, name = key.split("/", 1)
        if kind == MODEL:
            checkpoint[MODEL][name] = tensor
        elif kind == AVERAGES:
            average, name = name.split("/", 1)
            checkpoint[AVERAGES][average][name] = tensor
        else:
            number, parameter, name = name.split("/", 2)
            state = checkpoint[OPTIMIZERS][int(number)]["state"]
            state.setdefault(int(parameter), {})[name] = tensor
    return checkpoint


def read_whole(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """All tensors of a checkpoint that `read_rest` returned, whole, on the CPU."""
    optimizers = [optimizer_state_here(state, ()) for state in checkpoint.get(OPTIMIZERS, [])]
    averages = {
        name: model_state_here(state, {}) for name, state in checkpoint.get(AVERAGES, {}).items()
    }
    whole = {**checkpoint, MODEL: model_state_here(checkpoint[MODEL], {})}
    whole |= {OPTIMIZERS: optimizers} if optimizers else {}
    return whole | ({AVERAGES: averages} if averages else {})


def read_tensors(stored: Mapping[Any, Any], own: Mapping[Any, Any]) -> dict[Any, Tensor]:
    """What `stored.model_state_here` asks for.

    Args:
        stored: Tensors of a checkpoint that `read_rest` returned, by name.
        own: Tensors in the layout to read them in; one on the device "meta" is left out.
    """
    found: dict[Any, Tensor] = {}
    wanted: dict[str, dict[str, Any]] = {}
    for name, value in stored.items():
        here = own.get(name)
        if isinstance(here, Tensor) and here.is_meta:
            continue
        if isinstance(here, DTensor) and here.shape == value.shape:
            found[name] = torch.empty_like(here, dtype=value.dtype)
        else:
            found[name] = torch.empty_like(value, device="cpu")
        folder, key = getattr(value, STORED)
        wanted.setdefault(folder, {})[key] = found[name]
    for folder, tensors in wanted.items():
        with without_hints():
            load(tensors, storage_reader=ShardReader(folder), no_dist=True)
    return found
