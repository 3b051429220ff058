"""How the Trainer writes sharded checkpoints: all ranks together, into one folder."""

from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from ...errors import UserError
from ..remote import is_address
from ..storage import LocalFiles
from .shards import write_shards


class ShardedFolders(LocalFiles):
    """Every rank writes what it holds into one folder, on a disk that all ranks see."""

    keeps_shards = True
    _group: dist.ProcessGroup | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write this rank's part, or have it written. All ranks call this together."""
        if dist.is_available() and dist.is_initialized() and self._group is None:
            # Its own: a writer in the background must not meet what training sends.
            self._group = cast(dist.ProcessGroup, dist.new_group(backend="gloo"))
        super().save_checkpoint(checkpoint, path, storage_options)

    def put(self, checkpoint: dict[str, Any], path: str | Path) -> None:
        """Write this rank's part.

        Raises:
            UserError: If the place is an address.
        """
        if is_address(path):
            raise UserError(
                f"checkpoint.format=sharded: {path} is no folder of a disk that all ranks see; "
                "name one, or use checkpoint.format=file"
            )
        write_shards(checkpoint, Path(path), self._group)

    def has_written_all(self) -> bool:
        return self._group is None or dist.get_rank(self._group) == 0
