"""Whether a task trains under a strategy with the numbers of a plain Trainer, measured.

The package itself can be called, as `launch` can: ``onecurve.parity(...)`` is `runs.parity`.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from .runs import parity

        return parity(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
