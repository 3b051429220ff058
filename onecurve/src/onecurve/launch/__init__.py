"""How ranks start and meet: torchelastic, torchrun, srun.

The package itself can be called: ``onecurve.launch(function, devices=2)`` is `in_ranks.launch`. It
would else hide a function of that name, for Python binds a package to its parent's attribute.
https://docs.python.org/3/reference/datamodel.html#customizing-module-attribute-access
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from .in_ranks import launch

        return launch(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
