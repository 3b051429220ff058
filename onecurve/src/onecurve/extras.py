"""Packages that only an extra brings, such as ``.[onnx]``, and what to type without them."""

from collections.abc import Sequence
from importlib.util import find_spec


def missing(asked: str, packages: Sequence[str], extra: str, instead: str) -> str | None:
    """The refusal of what needs packages that are not installed; None where all of them are.

    Args:
        asked: What was typed, such as ``format=onnx``.
        packages: By the names that they are imported by; none is imported here.
        extra: That of this distribution which brings them.
        instead: What would work without.
    """
    absent = [name for name in packages if find_spec(name) is None]
    if not absent:
        return None
    return (
        f"{asked}: needs {', '.join(absent)}; type `uv pip install -e '.[{extra}]'`, or use "
        f"{instead}"
    )
