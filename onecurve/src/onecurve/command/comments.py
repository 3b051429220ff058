"""What the comments of a YAML file say of its keys."""

import re

# Indentation, key, and what stands behind the value.
LINE = re.compile(r"( *)([\w-]+):(?:.*?\s#\s(.*))?")


def comments(text: str) -> dict[str, str]:
    """By dotted key: the comment behind it, or that in the lines above it.

    The first comment of a file is about the file, and a line for tools about nothing.
    """
    found: dict[str, str] = {}
    inside: list[tuple[int, str]] = []
    above: list[str] = []
    is_first = True
    for line in text.splitlines():
        if re.match(r"\s*# (?!@package|yaml-language-server:)", line):
            above += [] if is_first else [line.strip(" #")]
            is_first = False
        elif key := LINE.match(line):
            indent = len(key[1])
            inside = [*(each for each in inside if each[0] < indent), (indent, key[2])]
            if said := key[3] or " ".join(above):
                found[".".join(name for _, name in inside)] = said
            above = []
        elif not line.startswith("#"):
            above = []
    return found
