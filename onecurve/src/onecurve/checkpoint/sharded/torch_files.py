"""PyTorch's files of a sharded checkpoint, without what is a machine's or could run code."""

import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata

from ..disk import disk_error

# Beside PyTorch's files: Lightning's dictionary without its tensors.
REST = "rest.ckpt"
# Its entries that hold tensors. Averages are by name of the callback, each like the network's.
MODEL, OPTIMIZERS, AVERAGES = "state_dict", "optimizer_states", "averages"

# All that .metadata may name: it is a pickle, which could otherwise run anything.
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
    """PyTorch's own notes the path, as a class of Python's, and hides why it could not write."""

    def storage_meta(self) -> None:
        """Nothing: the path of this machine is nobody's business."""

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        """Write this rank's tensors.

        Raises:
            OSError: If they cannot be written.
        """
        try:
            return super().write_data(*args, **kwargs)
        except Exception as error:
            if cause := disk_error(error):
                raise cause from None
            raise


class ShardReader(FileSystemReader):
    """PyTorch's own unpickles whatever .metadata holds."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read how the tensors are laid out.

        Raises:
            pickle.UnpicklingError: If the file holds anything else.
        """
        with Path(self.path, ".metadata").open("rb") as file:
            metadata: Metadata = _PlainUnpickler(file).load()
        metadata.storage_meta = None
        return metadata


class _PlainUnpickler(pickle.Unpickler):
    """Knows the classes of `METADATA_NAMES` and no others."""

    def find_class(self, module: str, name: str) -> Any:
        is_plain = (module, name) in METADATA_NAMES
        if not is_plain and not isinstance(found := super().find_class(module, name), torch.dtype):
            raise pickle.UnpicklingError(f"{module}.{name} has no place in .metadata")
        return super().find_class(module, name) if is_plain else found


@contextmanager
def without_hints() -> Iterator[None]:
    """Leave out what PyTorch has to say of a single process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield
