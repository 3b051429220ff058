"""Sharded checkpoints, by PyTorch's distributed checkpoint (DCP) as it is.

Every rank writes the tensors that it holds. The rest of Lightning's dictionary is one small file
beside them. PyTorch reads the folder, too, in any layout:

    torch.distributed.checkpoint.load({"state_dict": task.state_dict()}, checkpoint_id=SHARDED)

DCP's metadata is a pickle, so read a folder only from where you would run a script. One file of it:

    torch.save(onecurve.read_checkpoint(SHARDED), FILE)

Source: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from ..errors import UserError, in_short
from .file import REST, put_in_place, unfinished_of, write_checkpoint
from .format import GIVE, contents
from .lazy_tensors import STORED

MODEL, OPTIMIZERS = "state_dict", "optimizer_states"
# Entries whose tensors ranks hold in shards.
SHARDED = (MODEL, OPTIMIZERS, "averages")
warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is no mistake


def write_shards(checkpoint: dict[str, Any], path: Path, group: dist.ProcessGroup | None) -> None:
    """Write a checkpoint of which every rank holds shards. All ranks call this, in one order.

    Args:
        checkpoint: Lightning's dictionary with this rank's tensors, sharded ones among them.
        path: The folder, which all ranks see.
        group: All ranks, with gloo; None for a single process.

    Raises:
        OSError: On every rank, if one of them could not write; the old checkpoint is untouched.
    """
    rank = 0 if group is None else dist.get_rank(group)
    tensors, rest = _split(checkpoint)
    box = [os.getpid()]
    if group is not None:
        dist.broadcast_object_list(box, group=group, group_src=0)
    folder = unfinished_of(path, box[0])
    try:
        save(
            cast(dict[str, Any], tensors),
            checkpoint_id=folder,
            # Of replicated tensors the lowest rank's: BatchNorm buffers differ between ranks.
            planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
            process_group=group,
            no_dist=group is None,
        )
        state = {key: rest[key] for key in SHARDED if key in rest}
        for theirs in _on_first_rank(state, group)[1:]:
            _merge(rest, theirs)
        if rank == 0:
            write_checkpoint(rest, folder / REST)
            put_in_place(folder, path)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, CheckpointException):
            raise OSError(0, _failure(error)) from None
        raise


def _failure(error: CheckpointException) -> str:
    """What went wrong on the first of the ranks that failed."""
    failure, _ = next(iter(error.failures.values()))
    return in_short(failure)


def _changed(value: Any, change: Callable[[Tensor, str], Any], path: str = "") -> Any:
    """Nested containers with each tensor changed; the path of one is its name in DCP's files."""
    if isinstance(value, Tensor):
        return change(value, path)
    if isinstance(value, Mapping):
        return {key: _changed(each, change, _name(path, key)) for key, each in value.items()}
    if isinstance(value, list):
        return [_changed(each, change, _name(path, number)) for number, each in enumerate(value)]
    return value


def _name(path: str, key: Any) -> str:
    """The name of an entry in DCP's files, as `torch.distributed.checkpoint` itself makes it."""
    return f"{path}.{key}" if path else str(key)


def _split(checkpoint: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors by name, and the dictionary with tensors on the device "meta" in their places."""
    tensors: dict[str, Tensor] = {}

    def take(tensor: Tensor, path: str) -> Tensor:
        tensors[path] = tensor
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    sharded = {key: checkpoint[key] for key in SHARDED if key in checkpoint}
    return tensors, {**checkpoint, **_changed(sharded, take)}


def _merge(mine: Any, theirs: Any) -> None:
    """Add what another rank holds alone, such as a stage of a pipeline."""
    if isinstance(mine, dict):
        for key, value in theirs.items():
            _merge(mine.setdefault(key, value), value)
    elif isinstance(mine, list):
        for one, other in zip(mine, theirs, strict=False):
            _merge(one, other)


def _on_first_rank(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    if group is None:
        return [value]
    first = dist.get_rank(group) == 0
    values: list[Any] | None = [None] * dist.get_world_size(group) if first else None
    dist.gather_object(value, values, group=group, group_dst=0)
    return values or []


def read_rest(path: Path, weights_only: bool = True) -> dict[str, Any]:
    """Lightning's dictionary, with tensors that are read later (see `lazy_tensors`)."""

    def mark(tensor: Tensor, name: str) -> Tensor:
        setattr(tensor, STORED, (path, name))
        return tensor

    rest: dict[str, Any] = contents(path / REST, weights_only)
    return {**rest, **_changed({key: rest[key] for key in SHARDED if key in rest}, mark)}


def read_full(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What `read_rest` returns, with full tensors on the CPU."""
    tensors: dict[str, Tensor] = {}
    _changed(checkpoint, lambda tensor, path: tensors.update({path: tensor}))
    full = read_tensors({path: each for path, each in tensors.items() if hasattr(each, STORED)}, {})
    result: dict[str, Any] = _changed(checkpoint, lambda tensor, path: full.get(path, tensor))
    return result


def read_tensors(stored: Mapping[Any, Any], local: Mapping[Any, Any]) -> dict[Any, Tensor]:
    """Read tensors in the layout of others.

    Args:
        stored: Those of `read_rest`, by name.
        local: Tensors in the layout to read them in; one on the device "meta" is left out.
    """
    tensors: dict[Any, Tensor] = {}
    for name, value in stored.items():
        here = local.get(name)
        if isinstance(here, DTensor) and here.shape == value.shape:
            tensors[name] = torch.empty_like(here, dtype=value.dtype)
        elif not (isinstance(here, Tensor) and here.is_meta):
            tensors[name] = torch.empty_like(value, device="cpu")
    if tensors:
        marks = {name: getattr(stored[name], STORED) for name in tensors}
        wanted = {path: tensors[name] for name, (_, path) in marks.items()}
        folder = next(folder for folder, _ in marks.values())
        try:
            load(cast(dict[str, Any], wanted), checkpoint_id=folder, no_dist=True)
        except CheckpointException as error:
            raise UserError(f"{folder}: cannot be read ({_failure(error)}); {GIVE}") from None
    return tensors
