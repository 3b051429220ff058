"""What a sharded checkpoint holds: every rank writes its tensors, and reads only what it needs.

PyTorch's distributed checkpoint (DCP) lays the tensors out. The rest of Lightning's dictionary is
one small file beside them.
Source: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..file import write_checkpoint
from .folder import commit, complete_folder, digest_of, set_aside
from .torch_files import ShardReader, ShardWriter

REST = "rest.ckpt"
MODEL, OPTIMIZERS = "state_dict", "optimizer_states"
# Means of the weights, by name of the callback: each like the network's state.
AVERAGES = "averages"
# Where a tensor of a checkpoint that was read is stored: (folder, name). Until it is asked for, it
# is on the device "meta".
STORED = "stored"


# Writing


def write_shards(checkpoint: dict[str, Any], path: Path, group: dist.ProcessGroup | None) -> None:
    """Write a checkpoint of which every rank has a part. All ranks call this, in the same order.

    Args:
        checkpoint: Lightning's dictionary with this rank's tensors, sharded ones among them.
        path: The folder, which all ranks see.
        group: All ranks, with gloo; None for a single process.

    Raises:
        OSError: On every rank, if one of them could not write; the old checkpoint is untouched.
    """
    rank = 0 if group is None else dist.get_rank(group)
    tensors, rest = _split(checkpoint)
    earlier = set_aside(path) if rank == 0 and path.is_file() else None
    name = _from_first_rank(uuid.uuid4().hex[:8], group)
    folder = path / name
    try:
        with _without_hints():
            save(
                cast(dict[str, Any], tensors),
                storage_writer=ShardWriter(folder),
                # Of what several ranks have, the first one's: their BatchNorm buffers differ.
                planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
                process_group=group,
                no_dist=group is None,
            )
        mine = folder.glob(f"__{rank}_*")
        digests = _on_first_rank({file.name: digest_of(file) for file in mine}, group)
        rests = _on_first_rank(rest if rank == 0 else _parts(rest), group)
        if rank == 0:
            write_checkpoint(_merged(rests), folder / REST)
            digests += [{file: digest_of(folder / file)} for file in (REST, ".metadata")]
            commit(path, name, {file: one for each in digests for file, one in each.items()})
            if earlier:
                earlier.unlink()
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if earlier:
            # Unless another rank is not through with it; then it is found under its other name.
            with suppress(OSError):
                path.rmdir()
                earlier.rename(path)
        for failure, _ in getattr(error, "failures", {}).values():
            if isinstance(failure, OSError):
                raise failure from None
        raise


def _split(checkpoint: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors under flat names, and the same dictionary without them."""
    tensors: dict[str, Tensor] = {}

    def without_tensors(values: Mapping[Any, Any], prefix: str) -> dict[Any, Any]:
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{prefix}/{name}"] = value
        return {name: value for name, value in values.items() if not isinstance(value, Tensor)}

    optimizers = []
    for number, optimizer in enumerate(checkpoint.get(OPTIMIZERS, [])):
        state = {
            key: without_tensors(entry, f"{OPTIMIZERS}/{number}/{key}")
            for key, entry in optimizer["state"].items()
        }
        optimizers.append({**optimizer, "state": state})
    model = without_tensors(checkpoint[MODEL], MODEL)
    rest = {**checkpoint, MODEL: model}
    if AVERAGES in checkpoint:
        rest[AVERAGES] = {
            name: without_tensors(state, f"{AVERAGES}/{name}")
            for name, state in checkpoint[AVERAGES].items()
        }
    return tensors, {**rest, OPTIMIZERS: optimizers} if optimizers else rest


def _parts(rest: dict[str, Any]) -> dict[str, Any]:
    """What another rank than the first has of its own."""
    return {key: rest[key] for key in (MODEL, OPTIMIZERS) if key in rest}


def _merged(rests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = rests[0]
    for other in rests[1:]:
        first[MODEL].update(other[MODEL])
        for mine, theirs in zip(first.get(OPTIMIZERS, []), other.get(OPTIMIZERS, []), strict=True):
            mine["state"].update(theirs["state"])
    return first


# Reading


def read_rest(path: Path) -> dict[str, Any]:
    """Lightning's dictionary, in which tensors of the network and of optimizers have no memory."""
    folder = complete_folder(path)
    checkpoint: dict[str, Any] = torch.load(folder / REST, weights_only=True)
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


def model_state_here(state: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The network's state out of a checkpoint of either format.

    Args:
        state: Of a sharded checkpoint only the part that this process holds is read.
        own: The network's present state. A tensor is read in the layout that it has here: a shard
            of it, or nothing if it is on the device "meta".
    """
    return {**state, **_read(state, own)}


def optimizer_state_here(state: Mapping[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """The same for an optimizer, whose parameters stand in the order of their ids."""
    entries: dict[int, Any] = {}
    for key, entry in state["state"].items():
        own = dict.fromkeys(entry, parameters[key]) if parameters else {}
        entries[key] = {**entry, **_read(entry, own)}
    return {**state, "state": entries}


def optimizer_states_here(
    states: Sequence[Mapping[str, Any]], optimizers: Sequence[Optimizer]
) -> list[dict[str, Any]]:
    """The same for all optimizers."""
    return [
        optimizer_state_here(
            state, [parameter for group in optimizer.param_groups for parameter in group["params"]]
        )
        for state, optimizer in zip(states, optimizers, strict=True)
    ]


def _read(stored: Mapping[Any, Any], own: Mapping[Any, Any]) -> dict[Any, Tensor]:
    found: dict[Any, Tensor] = {}
    wanted: dict[str, dict[str, Any]] = {}
    for name, value in stored.items():
        here = own.get(name)
        if not hasattr(value, STORED) or (isinstance(here, Tensor) and here.is_meta):
            continue
        if isinstance(here, DTensor) and here.shape == value.shape:
            found[name] = torch.empty_like(here, dtype=value.dtype)
        else:
            found[name] = torch.empty_like(value, device="cpu")
        folder, key = getattr(value, STORED)
        wanted.setdefault(folder, {})[key] = found[name]
    for folder, tensors in wanted.items():
        with _without_hints():
            load(tensors, storage_reader=ShardReader(folder), no_dist=True)
    return found


# Between ranks


def _from_first_rank(value: str, group: dist.ProcessGroup | None) -> str:
    box = [value]
    if group is not None:
        dist.broadcast_object_list(box, group=group, group_src=0)
    return box[0]


def _on_first_rank(value: dict[str, Any], group: dist.ProcessGroup | None) -> list[dict[str, Any]]:
    if group is None:
        return [value]
    first = dist.get_rank(group) == 0
    values: list[Any] | None = [None] * dist.get_world_size(group) if first else None
    dist.gather_object(value, values, group=group, group_dst=0)
    return values or []


@contextmanager
def _without_hints() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield
