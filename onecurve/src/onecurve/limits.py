"""Deprecated: limits in annotations have no effect; `onecurve.Config` describes arguments now.

The names stay for a release, so that a project that has them in its annotations still starts.
"""

import warnings
from typing import Any

NAMES = ("Existing", "Number", "Pattern")


def __getattr__(name: str) -> Any:
    """Warn what replaces a name: https://peps.python.org/pep-0562/."""
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"onecurve.limits.{name} has no effect any more: say what a class takes in a class "
        "Config(onecurve.Config) in it",
        DeprecationWarning,
        stacklevel=2,
    )
    return lambda *arguments, **options: None
