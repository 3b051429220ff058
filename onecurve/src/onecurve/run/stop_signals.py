"""Which signals stop a training run, and where its ranks say that they listen to them.

Whoever starts ranks asks for these, and need not import Lightning for it.
"""

import signal
from pathlib import Path

# Where ranks were sent different ones, the later in this list is what stopped the run.
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT")
    if hasattr(signal, name)
)

# Where a rank that torchelastic started leaves its PID while a signal only sets its flag.
listening: Path | None = None
