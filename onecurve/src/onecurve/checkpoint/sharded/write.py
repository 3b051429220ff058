"""Writes a sharded checkpoint: every rank the tensors that it holds.

PyTorch's distributed checkpoint (DCP) lays the tensors out. The rest of Lightning's dictionary is
one small file beside them.
Source: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import save

from ..disk import set_aside
from ..file import write_checkpoint
from .folder import commit, digest_of
from .torch_files import AVERAGES, MODEL, OPTIMIZERS, REST, ShardWriter, without_hints


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
        with without_hints():
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
