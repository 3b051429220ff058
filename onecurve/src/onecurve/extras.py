"""Packages of an extra, such as ``.[onnx]``, and the error line if they are missing."""

from collections.abc import Sequence
from importlib.util import find_spec


def missing(asked: str, packages: Sequence[str], extra: str, instead: str) -> str | None:
    """The error line for an option whose packages are not installed; None if they are.

    Args:
        asked: The option, such as ``format=onnx``.
        packages: Names of modules; none is imported here.
        extra: The extra of this distribution that installs them.
        instead: An option that works without them.
    """
    absent = [name for name in packages if find_spec(name) is None]
    if not absent:
        return None
    return (
        f"{asked}: needs {', '.join(absent)}; type `uv pip install -e '.[{extra}]'`, or use "
        f"{instead}"
    )
