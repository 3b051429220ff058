"""Deprecated: limits in annotations, which have no effect any more.

A model, `onecurve.Config`, describes the arguments of a class instead. These names stay for one
release, so that a project with such annotations still starts.
"""

import warnings
from typing import Any

NAMES = ("Existing", "Number", "Pattern")


def __getattr__(name: str) -> Any:
    """Warn about a deprecated name: https://peps.python.org/pep-0562/."""
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"onecurve.limits.{name} no longer has any effect: describe the arguments of a class by a "
        "class Config(onecurve.Config) in it",
        DeprecationWarning,
        stacklevel=2,
    )
    return lambda *arguments, **options: None
