"""Where Katib's file cannot be."""

import os
from collections.abc import Iterator
from pathlib import Path

from ..composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why no file can be made there, on this node."""
    file = Path(str(run.get(f"{key}.file")))
    there = next(place for place in (file, *file.absolute().parents) if place.exists())
    fits = there.is_file() if there == file else there.is_dir()
    if not fits or not os.access(there, os.W_OK):
        yield (
            f"{key}.file={file}: no file can be written there ({there} is in the way); give one "
            f"that can, such as {key}.file=katib.json"
        )
