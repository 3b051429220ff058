"""A package that can be called as its main function: ``onecurve.launch(function, devices=2)``.

Python binds a package to an attribute of its parent, where it would hide a function of that name.
https://docs.python.org/3/reference/datamodel.html#customizing-module-attribute-access
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(package: str, module: str, function: str) -> None:
    """Make a package callable: the call imports a function and calls it.

    Args:
        package: Its name.
        module: Where the function is, below the package.
        function: The function's name.
    """

    class Callable(ModuleType):
        def __call__(self, *arguments: Any, **named: Any) -> Any:
            return getattr(import_module(f"{package}.{module}"), function)(*arguments, **named)

    sys.modules[package].__class__ = Callable
