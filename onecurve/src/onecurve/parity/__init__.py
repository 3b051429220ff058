"""Measures whether a task trains under a strategy exactly as under a plain Trainer.

The package itself can be called: ``onecurve.parity(...)`` is `runs.parity`.
"""

from .. import make_callable

make_callable(__name__, "runs", "parity")
