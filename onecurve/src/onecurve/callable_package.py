"""A package that can be called as its main function: ``onecurve.launch(function, devices=2)``.

A function with the package's name would not do: importing any part of the package hides it, because
Python then binds the package to the attribute of its parent.
https://docs.python.org/3/reference/datamodel.html#customizing-module-attribute-access
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(package: str, module: str, function: str) -> None:
    """Make calls of a package call a function of a module in it, imported at the first call."""

    class Callable(ModuleType):
        def __call__(self, *arguments: Any, **named: Any) -> Any:
            return getattr(import_module(f"{package}.{module}"), function)(*arguments, **named)

    sys.modules[package].__class__ = Callable
