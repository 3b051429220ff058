"""How the Trainer writes, reads and removes checkpoint files: in order, maybe in the background."""

import errno
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.strategies import Strategy
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..compat.of_torch import tree_map_only
from ..errors import UserError, say
from .file import write_checkpoint
from .format import not_plain, read_checkpoint, with_plain_numbers
from .mirror import Mirror
from .remote import is_address


class LocalFiles(TorchCheckpointIO):
    """Files on a local or shared disk; at an address, such as ``s3://bucket/a.ckpt``, Lightning's.

    What was asked for is done in order by one writer; nothing is removed after a file that could
    not be written, because what was to be removed is then the newest that is left.

    Args:
        background: Whether training goes on while a file is written. The copy is taken at once.
        stop_on_failure: Whether a file that cannot be written ends the run.
        mirror: Sends each whole checkpoint to an address, too; None for none.

    Attributes:
        keeps_shards: Whether every rank writes what it holds, so that nothing is gathered.
    """

    keeps_shards: bool = False

    def __init__(
        self, background: bool = False, stop_on_failure: bool = True, mirror: Mirror | None = None
    ) -> None:
        self.background = background
        self.stop_on_failure = stop_on_failure
        self._writer = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._waiting: list[Future[None]] = []
        self._mirror = mirror
        self._last_failed = False
        self._missing: dict[str | Path, str] = {}
        self._in_hand: tuple[Path, dict[str, Any]] | None = None
        self._said_what_is_not_plain = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a file, and say once what of it `weights_only=True` will not read.

        Raises:
            TypeError: If there are storage options, of which it knows none.
        """
        if storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)  # raises it
        checkpoint = with_plain_numbers(checkpoint)
        if not self._said_what_is_not_plain and (line := not_plain(checkpoint)):
            rank_zero_only(say)(f"checkpoint: {line}")
            self._said_what_is_not_plain = True
        if self.background:
            self.finish()  # one copy at a time
            checkpoint = tree_map_only(Tensor, _copied, checkpoint)
        self._do(lambda: self._write(checkpoint, path))

    def put(self, checkpoint: dict[str, Any], path: str | Path) -> None:
        """Write one file.

        Raises:
            OSError: If it cannot be written; what was there is untouched.
        """
        if is_address(path):
            super().save_checkpoint(checkpoint, path)
        else:
            write_checkpoint(checkpoint, path)

    def has_written_all(self) -> bool:
        """Whether this process is the one that made the last checkpoint whole."""
        return True

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a file onto the CPU, once everything is written; a sharded one's tensors later."""
        self.finish()
        if self._in_hand and self._in_hand[0] == Path(path):
            checkpoint, self._in_hand = self._in_hand[1], None
            return checkpoint
        return read_checkpoint(path, whole=False, weights_only=weights_only is not False)

    def has(self, path: str | Path) -> bool:
        """Whether `load_checkpoint` finds it, here on this node."""
        self.finish()
        return (self._in_hand is not None and self._in_hand[0] == Path(path)) or _exists(path)

    def take_over(self, checkpoint: dict[str, Any], path: Path) -> None:
        """Keep what was read of a file already, until `load_checkpoint` asks for it."""
        self._in_hand = path, checkpoint

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a file, unless the one that replaces it could not be written."""
        self._do(lambda: self._remove(path))

    def poll(self) -> None:
        """Raise what went wrong in the background; called after every step.

        Raises:
            UserError: If a file could not be written and that ends the run.
        """
        while self._waiting and self._waiting[0].done():
            self._waiting.pop(0).result()

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            UserError: If a file could not be written and that ends the run.
        """
        while self._waiting:
            self._waiting.pop(0).result()

    def refuse_if_all_failed(self) -> None:
        """At the end of a run: training went on, but there is nothing to keep of it.

        Raises:
            UserError: If a file is not there, and none was written after it.
        """
        self.finish()
        for path, reason in self._missing.items():
            raise UserError(
                f"checkpoint: {path} could never be written: {reason}; training came to its end, "
                "but what it reached is lost: make room and train again, or end a run at the "
                "first failure: checkpoint.on_failure=stop"
            )

    def finish_mirror(self) -> None:
        """At any end of a run: wait until all is sent, and say what is there."""
        if self._mirror:
            self._mirror.finish()

    def teardown(self) -> None:
        """Lightning calls this at the end of a fit."""
        self.finish()

    def _do(self, work: Callable[[], None]) -> None:
        if self._writer is None:
            work()
        else:
            self._waiting.append(self._writer.submit(work))

    def _write(self, checkpoint: dict[str, Any], path: str | Path) -> None:
        try:
            self.put(checkpoint, path)
            self._last_failed = False
            self._missing.clear()
            if self._mirror and self.has_written_all() and not is_address(path):
                self._mirror.put(Path(path))
        except OSError as error:
            self._last_failed = True
            reason = error.strerror or str(error)
            if error.errno == errno.ENOSPC:
                reason = "the disk is full"
            if not _exists(path):
                self._missing[path] = reason
            if self.stop_on_failure:
                raise UserError(
                    f"checkpoint: {path} could not be written: {reason}; what was saved before is "
                    "whole: make room and go on with resume=last, or train on without it: "
                    "checkpoint.on_failure=continue"
                ) from None
            say(
                f"checkpoint: {path} could not be written: {reason}; training goes on, and what "
                "was saved before is whole"
            )

    def _remove(self, path: str | Path) -> None:
        if self._last_failed:
            return
        super().remove_checkpoint(path)
        if self._mirror and not is_address(path):
            self._mirror.remove(Path(path))


def _exists(path: str | Path) -> bool:
    return bool(get_filesystem(path).exists(str(path)))


def _copied(tensor: Tensor) -> Tensor:
    """On the CPU, and no longer the one that training changes. A shard stays on its device."""
    if isinstance(tensor, DTensor):
        return tensor.detach().clone()
    return torch.empty_like(tensor, device="cpu").copy_(tensor)


def read_on_nodes(
    strategy: Strategy, path: str | Path, read: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Read a file, or be sent what rank 0 reads, which wrote it on the disk of its node.

    All ranks call this.

    Args:
        strategy: Of the run.
        path: Of the file.
        read: Reads it.
    """
    files = strategy.checkpoint_io
    if not isinstance(files, LocalFiles) or strategy.reduce_boolean_decision(files.has(path)):
        return read()
    checkpoint: Any = read() if strategy.is_global_zero else None
    broadcast: dict[str, Any] = strategy.broadcast(checkpoint)
    return broadcast
