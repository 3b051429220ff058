"""Starts ranks, and connects them: torchelastic, torchrun, srun.

The package itself can be called: `onecurve.launch(...)` is `in_ranks.launch`.
"""

from .. import make_callable

make_callable(__name__, "in_ranks", "launch")
