"""What a release says: `python .ci/release_notes.py v0.2.0` prints its part of CHANGELOG.md.

It refuses a tag that differs from what the template and the library call themselves.
"""

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).parents[1]
VERSIONS: dict[str, Callable[[str], str]] = {
    "cookiecutter.json": lambda text: json.loads(text)["_version"],
    "onecurve/pyproject.toml": lambda text: tomllib.loads(text)["project"]["version"],
}


def main(tag: str, top: Path = TOP) -> str:
    """The section of a tag, without its heading.

    Raises:
        SystemExit: one line, where the tag is of another version, or nothing is written about it.
    """
    for name, version_in in VERSIONS.items():
        version = version_in((top / name).read_text(encoding="utf-8"))
        if tag != f"v{version}":
            sys.exit(f"error: the tag is {tag}, but {name} says {version}: tag v{version}")
    changelog = (top / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## {re.escape(tag[1:])}\b.*\n"
    found = re.search(rf"{heading}((?:(?!## ).*\n)*)", changelog, re.MULTILINE)
    if not found or not found[1].strip():
        sys.exit(f"error: CHANGELOG.md has nothing under '## {tag[1:]}': rename '## Unreleased'")
    return found[1].strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("error: which tag? type python .ci/release_notes.py v0.2.0")
    print(main(sys.argv[1]))
