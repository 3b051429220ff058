"""What Comet cannot do without."""

import os
from collections.abc import Iterator
from pathlib import Path

from ..composed_run import ComposedRun
from ..extras import missing


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why it cannot be used, or reached."""
    asked = f"logger={key.partition('.')[2]}"
    if refusal := missing(asked, ("comet_ml",), "comet", "logger=tensorboard"):
        yield refusal
    elif run.get(f"{key}.online") and not _has_key():
        yield (
            f"{key}.online=true: there is no key for Comet; run `comet login` or set "
            f"COMET_API_KEY, or use {key}.online=false"
        )


def _has_key() -> bool:
    """Whether one is where Comet looks for it."""
    if os.environ.get("COMET_API_KEY"):
        return True
    files = [Path(os.environ.get("COMET_CONFIG", ""))]
    files += [folder / ".comet.config" for folder in (Path.home(), Path.cwd())]
    return any(file.is_file() and "api_key" in file.read_text(errors="replace") for file in files)
