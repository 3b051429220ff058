"""The Trainer's checkpoint IO: single files, or sharded folders; at once or in the background."""

import errno
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.strategies import Strategy
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..compat.of_torch import tree_map_only
from ..errors import UserError, in_short, say
from .file import write_checkpoint
from .format import not_plain, read_checkpoint, without_numpy_numbers
from .remote import is_address


class LocalFiles(TorchCheckpointIO):
    """Files on a local or shared disk; at an address, such as ``s3://bucket/a.ckpt``, Lightning's.

    One writer saves and removes in the order of the calls. After a failed save nothing is removed:
    it would be the newest checkpoint that is left.

    Args:
        background: Whether training continues while a file is written. The copy is taken at once.
    """

    keeps_shards: bool = False
    """Whether every rank writes what it holds, so that nothing is gathered."""

    def __init__(self, background: bool = False) -> None:
        self.background = background
        self._writer = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._waiting: list[Future[None]] = []
        self._last_failed = False
        self._preloaded: tuple[Path, dict[str, Any]] | None = None
        self._has_warned = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Save, and warn once of what `weights_only=True` will not read."""
        if storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)  # raises it
        checkpoint = without_numpy_numbers(checkpoint)
        if not self._has_warned and (line := not_plain(checkpoint)):
            rank_zero_only(say)(f"checkpoint: {line}")
        self._has_warned = True
        if self.background:
            self.finish()  # one copy at a time
            checkpoint = tree_map_only(Tensor, _copied, checkpoint)
        self._do(lambda: self._write(checkpoint, path))

    def put(self, checkpoint: dict[str, Any], path: str | Path) -> None:
        """Write one checkpoint; after an OSError the old one is untouched."""
        if is_address(path):
            super().save_checkpoint(checkpoint, path)
        else:
            write_checkpoint(checkpoint, path)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read onto the CPU once all is written; tensors of a sharded one are read later."""
        self.finish()
        if self._preloaded and self._preloaded[0] == Path(path):
            checkpoint, self._preloaded = self._preloaded[1], None
            return checkpoint
        return read_checkpoint(path, whole=False, weights_only=weights_only is not False)

    def has(self, path: str | Path) -> bool:
        """Whether `load_checkpoint` finds it on this node."""
        self.finish()
        return bool(get_filesystem(path).exists(str(path)))

    def preload(self, checkpoint: dict[str, Any], path: Path) -> None:
        """Hand over a file's contents, so that `load_checkpoint` does not read it again."""
        self._preloaded = path, checkpoint

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint, unless the save of its replacement failed."""
        self._do(lambda: self._remove(path))

    def poll(self) -> None:
        """Raise an error of the background writer; called after every step."""
        while self._waiting and self._waiting[0].done():
            self._waiting.pop(0).result()

    def finish(self) -> None:
        """Wait until everything is written; an error of the background writer is raised."""
        while self._waiting:
            self._waiting.pop(0).result()

    def teardown(self) -> None:
        """Lightning calls this at the end of a fit."""
        self.finish()

    def _do(self, work: Callable[[], None]) -> None:
        if self._writer is None:
            work()
        else:
            self._waiting.append(self._writer.submit(work))

    def _write(self, checkpoint: dict[str, Any], path: str | Path) -> None:
        self._last_failed = True
        try:
            self.put(checkpoint, path)
        except Exception as error:
            # Each kind of object storage raises errors of its own.
            if not isinstance(error, OSError) and not is_address(path):
                raise
            reason = getattr(error, "strerror", None) or in_short(error) or type(error).__name__
            if getattr(error, "errno", None) == errno.ENOSPC:
                reason = "the disk is full"
            raise UserError(
                f"checkpoint: {path} could not be written: {reason}; earlier ones are complete: "
                "free some space and continue with resume=last"
            ) from None
        self._last_failed = False

    def _remove(self, path: str | Path) -> None:
        if not self._last_failed:
            super().remove_checkpoint(path)


class ShardedFolders(LocalFiles):
    """Every rank writes what it holds into one folder, on a disk that all ranks see."""

    keeps_shards = True
    _group: dist.ProcessGroup | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write this rank's shards, or have them written. All ranks call this together."""
        if dist.is_available() and dist.is_initialized() and self._group is None:
            # A group of its own: a background writer must not meet the collectives of training.
            self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        super().save_checkpoint(checkpoint, path, storage_options)

    def put(self, checkpoint: dict[str, Any], path: str | Path) -> None:
        # Only this needs PyTorch's distributed checkpoint.
        from .sharded import write_shards

        if is_address(path):
            raise UserError(
                f"checkpoint.format=sharded: {path} is not a folder on a disk that all ranks see; "
                "name one, or use checkpoint.format=file"
            )
        write_shards(checkpoint, Path(path), self._group)


def _copied(tensor: Tensor) -> Tensor:
    """A copy on the CPU that training does not change. A shard stays on its device."""
    if isinstance(tensor, DTensor):
        return tensor.detach().clone()
    return torch.empty_like(tensor, device="cpu").copy_(tensor)


def read_on_nodes(
    strategy: Strategy, path: str | Path, read: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Read a file on every rank, or broadcast it from rank 0 where nodes share no disk.

    All ranks call this.
    """
    files = strategy.checkpoint_io
    if not isinstance(files, LocalFiles) or strategy.reduce_boolean_decision(files.has(path)):
        return read()
    checkpoint: Any = read() if strategy.is_global_zero else None
    broadcast: dict[str, Any] = strategy.broadcast(checkpoint)
    return broadcast
