"""Which signals stop a training run.

Whoever starts ranks asks for these, and need not import Lightning for it.
"""

import signal

# Where ranks were sent different ones, the later in this list is what stopped the run.
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT")
    if hasattr(signal, name)
)
