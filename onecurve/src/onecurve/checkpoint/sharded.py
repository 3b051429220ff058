"""Writes and reads sharded checkpoints by PyTorch's distributed checkpoint (DCP).

Every rank writes the tensors that it holds. The rest of Lightning's dictionary is one small file
beside them. DCP's files name no path of the machine, and nothing in them can run code. A sharded
checkpoint becomes one file, which `torch.load` reads anywhere, by

    python -m onecurve.checkpoint.sharded SHARDED FILE

Source: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

import pickle
import shutil
import sys
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
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from ..errors import UserError, stop
from .file import (
    commit_shards,
    complete_folder,
    digest_of,
    disk_error,
    set_aside,
    write_checkpoint,
)
from .format import read_checkpoint
from .lazy_tensors import STORED, model_state_here, optimizer_state_here

REST = "rest.ckpt"  # beside DCP's files: Lightning's dictionary without its tensors
# Its entries with tensors. Averages are by name of the callback, each like the network's.
MODEL, OPTIMIZERS, AVERAGES = "state_dict", "optimizer_states", "averages"

# The classes that .metadata may name: it is a pickle, which could otherwise run any code.
METADATA_NAMES = {
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.serialization", "_get_layout"),
}


class ShardWriter(FileSystemWriter):
    """DCP's, without the path of this machine, and with the OSError of a failed write."""

    def storage_meta(self) -> None:
        """Leave out the path and the id of this save, which DCP would write."""

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().write_data(*args, **kwargs)
        except Exception as error:
            if cause := disk_error(error):
                raise cause from None
            raise


class ShardReader(FileSystemReader):
    """DCP's, which would unpickle anything in .metadata."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with Path(self.path, ".metadata").open("rb") as file:
            metadata: Metadata = _PlainUnpickler(file).load()
        metadata.storage_meta = None
        return metadata


class _PlainUnpickler(pickle.Unpickler):
    """Loads the classes of `METADATA_NAMES`, and dtypes."""

    def find_class(self, module: str, name: str) -> Any:
        is_plain = (module, name) in METADATA_NAMES
        if not is_plain and not isinstance(found := super().find_class(module, name), torch.dtype):
            raise pickle.UnpicklingError(f"{module}.{name} has no place in .metadata")
        return super().find_class(module, name) if is_plain else found


@contextmanager
def without_hints() -> Iterator[None]:
    """Suppress DCP's warning about a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


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
    earlier = set_aside(path) if rank == 0 and path.is_file() else None
    box = [uuid.uuid4().hex[:8]]
    if group is not None:
        dist.broadcast_object_list(box, group=group, group_src=0)
    (name,) = box
    folder = path / name
    try:
        with without_hints():
            save(
                cast(dict[str, Any], tensors),
                storage_writer=ShardWriter(folder),
                # Of replicated tensors the lowest rank's: BatchNorm buffers differ between ranks.
                planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True),
                process_group=group,
                no_dist=group is None,
            )
        mine = folder.glob(f"__{rank}_*")
        digests = _on_first_rank({file.name: digest_of(file) for file in mine}, group)
        # Of the other ranks the entries that differ.
        mine_alone = {key: rest[key] for key in (MODEL, OPTIMIZERS) if key in rest}
        rests = _on_first_rank(rest if rank == 0 else mine_alone, group)
        if rank == 0:
            write_checkpoint(_merged(rests), folder / REST)
            digests += [{file: digest_of(folder / file)} for file in (REST, ".metadata")]
            commit_shards(path, name, {file: one for each in digests for file, one in each.items()})
            if earlier:
                earlier.unlink()
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if earlier:
            # Not while another rank still writes there; then it is found under its other name.
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


def _merged(rests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = rests[0]
    for other in rests[1:]:
        first[MODEL].update(other[MODEL])
        for mine, theirs in zip(first.get(OPTIMIZERS, []), other.get(OPTIMIZERS, []), strict=True):
            mine["state"].update(theirs["state"])
    return first


def _on_first_rank(value: dict[str, Any], group: dist.ProcessGroup | None) -> list[dict[str, Any]]:
    if group is None:
        return [value]
    first = dist.get_rank(group) == 0
    values: list[Any] | None = [None] * dist.get_world_size(group) if first else None
    dist.gather_object(value, values, group=group, group_dst=0)
    return values or []


def read_rest(path: Path, weights_only: bool = True) -> dict[str, Any]:
    """Lightning's dictionary with placeholders for tensors (see `lazy_tensors`)."""
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


def read_full(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Replace the placeholders of `read_rest` by full tensors on the CPU."""
    optimizers = [optimizer_state_here(state, ()) for state in checkpoint.get(OPTIMIZERS, [])]
    averages = {
        name: model_state_here(state, {}) for name, state in checkpoint.get(AVERAGES, {}).items()
    }
    full = {**checkpoint, MODEL: model_state_here(checkpoint[MODEL], {})}
    full |= {OPTIMIZERS: optimizers} if optimizers else {}
    return full | ({AVERAGES: averages} if averages else {})


def read_tensors(stored: Mapping[Any, Any], own: Mapping[Any, Any]) -> dict[Any, Tensor]:
    """Read tensors in the layout of others.

    Args:
        stored: Placeholders of `read_rest`, by name.
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


def main(arguments: list[str]) -> None:
    """Turn a sharded checkpoint into one file, and print what was written."""
    if len(arguments) != 2:
        raise UserError(
            "sharded: give a sharded checkpoint and the file to write, such as "
            "runs/.../checkpoints/last.ckpt whole.ckpt"
        )
    source, target = map(Path, arguments)
    if target.exists():
        raise UserError(f"{target}: exists already; give a new name, or remove it first")
    checkpoint = read_checkpoint(source)
    try:
        write_checkpoint(checkpoint, target)
    except OSError as error:
        raise UserError(f"{target}: could not be written: {error.strerror}") from None
    print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB, {source} as one file")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as refusal:
        stop(refusal)
