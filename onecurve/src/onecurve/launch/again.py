"""The run that ranks go on with which torchrun starts again: after a failure, or for more nodes.

Each of them is a command of its own, which would make a run of its own; but its parent, torchrun's
agent, stays. What an agent has begun is in a file of the temporary folder, by the agent's process.
"""

import os
import tempfile
from pathlib import Path

from .. import surroundings

goes_on = False
"""Whether this process goes on with a run that others began."""


def number() -> int:
    """How often the ranks of this run were started before, as far as this process is told.

    Where a node has come or gone, torchrun counts no restart.
    """
    return max(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), int(goes_on))


def run_of_agent() -> str | None:
    """The run directory that ranks of this one's agent have had before; None for a new run."""
    note = _note()
    try:
        if note is None or note.stat().st_uid != os.getuid():
            return None
        return note.read_text() or None
    except OSError:
        return None


def remember(run_dir: str) -> None:
    """Leave the run directory for the ranks that this one's agent may start later."""
    note = _note()
    if note is None or note.exists():
        return
    descriptor = os.open(note, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(run_dir)


def _note() -> Path | None:
    """Named by the agent's number and the time of its start; None where that is unknown."""
    ranks = surroundings.ranks_around()
    if ranks is None or ranks.starter != "torchrun":
        return None
    agent = os.getppid()
    try:
        # proc_pid_stat(5): the second field is a name in parentheses, the 22nd the time of start.
        started = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
    return Path(tempfile.gettempdir()) / f"onecurve-{os.getuid()}-{agent}-{started}"
