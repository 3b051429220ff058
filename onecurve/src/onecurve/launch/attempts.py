"""What the agent of a node and its ranks tell each other: a folder of their own."""

import json
from pathlib import Path

from ..checkpoint.file import newest_checkpoint
from ..run.restart import Attempt

FILE = "attempt"


def begin(folder: Path, attempt: Attempt) -> None:
    """Tell the ranks that are started next; those of an earlier attempt listen no more."""
    listening = folder / "listening"
    listening.mkdir(exist_ok=True)
    for pid in listening.iterdir():
        pid.unlink(missing_ok=True)
    (folder / FILE).write_text(json.dumps(attempt))


def told(folder: Path) -> Attempt:
    """What the agent told its ranks."""
    return Attempt(*json.loads((folder / FILE).read_text()))


def decided(number: int, run_dir: Path | None) -> Attempt:
    """From where an attempt goes on: the newest checkpoint of the run itself, if there is one."""
    if number == 0 or run_dir is None:
        return Attempt(number)
    found = newest_checkpoint(run_dir).file
    return Attempt(number, str(found) if found else None)
