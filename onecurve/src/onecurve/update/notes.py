"""What the template's CHANGELOG says to those who update."""

import re

HEADING = "to update"


def notes(before: str, after: str) -> list[str]:
    """The points under "To update" that a newer changelog has and an older one has not."""
    known = {_words(point) for point in _points(before)}
    return [point for point in _points(after) if _words(point) not in known]


def _points(changelog: str) -> list[str]:
    points: list[str] = []
    inside = False
    for line in changelog.splitlines():
        if line.startswith("#"):
            inside = HEADING in line.lower()
        elif inside and line.startswith("- "):
            points.append(line)
        elif inside and points and line.startswith("  "):
            points[-1] += f"\n{line}"
    return points


def _words(point: str) -> str:
    return re.sub(r"\s+", " ", point)
