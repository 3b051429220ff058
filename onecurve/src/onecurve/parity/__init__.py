"""Whether a task trains under a strategy with the numbers of a plain Trainer, measured.

Called, as ``onecurve.parity(...)``, it is `runs.parity`.
"""

from ..callable_package import make_callable

make_callable(__name__, "runs", "parity")
