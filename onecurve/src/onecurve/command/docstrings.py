"""What docstrings say of arguments, without importing what they describe."""

import ast
import re
from functools import cache

from .source import find, method


@cache
def described(target: str) -> dict[str, str]:
    """What the docstring of a class or a function, and those of its bases, say of the arguments."""
    texts: dict[str, str] = {}
    found = find(target)
    while found is not None:
        source, node = found
        own = method(node, "__init__") if isinstance(node, ast.ClassDef) else None
        for part in (own, node) if own else (node,):
            texts = _arguments(ast.get_docstring(part) or "") | texts
        found = next(iter(source.bases(node)), None)
    return texts


@cache
def summary(target: str) -> str | None:
    """The first line of its docstring."""
    found = find(target)
    text = ast.get_docstring(found[1]) if found else None
    return text.partition("\n")[0] if text else None


def _arguments(docstring: str) -> dict[str, str]:
    """The part "Args:" in Google's style, by name."""
    part = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", docstring, re.MULTILINE)
    entries = re.findall(
        r"^ {4}(\w+)(?: \([^)]*\))?:\s+(.*(?:\n {5,}.*|\n(?=\n {5,}))*)",
        part[1] if part else "",
        re.MULTILINE,
    )
    return {name: " ".join(text.split()) for name, text in entries}
