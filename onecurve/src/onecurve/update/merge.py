"""What an update does to each file of a project."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch

from .hunks import merged

YOURS = ("README.md", "LICENSE")
"""Files that are written once, and are their user's from then on."""
OURS = ("tests/test_*.py", "engine/*")
"""Files of the template that nobody needs to edit: in doubt, the newer one."""
LIBRARY = "engine/src/onecurve/"
"""Where a group of `configs/` may have moved to; a file of the same name in `configs/` wins."""
Files = Mapping[str, bytes]


@dataclass
class Update:
    """What to write, and what to tell.

    Attributes:
        write: New contents by path; None deletes the file.
        settled: Yours stayed where the template has changed the same lines.
        replaced: The template's took the place of yours.
        no_longer: Yours stayed, and the template has it no longer.
        taken: Yours stayed, and the template has begun to have another of that name.
    """

    write: dict[str, bytes | None] = field(default_factory=dict)
    settled: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    no_longer: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)


def update(base: Files, yours: Files, theirs: Files, skip: Collection[str] = ()) -> Update:
    """Bring what has changed between two projects as baked into one that was edited.

    Args:
        base: The project as it was baked, by path.
        yours: As it is now.
        theirs: As the newer template bakes it.
        skip: Names, folders and patterns that stay as they are.
    """
    done = Update()
    for path in sorted({*base, *theirs}):
        if not matches(path, skip):
            new = theirs.get(path)
            if new is None and yours.get(path) != base.get(path) and path.startswith("configs/"):
                new = theirs.get(f"{LIBRARY}{path}")
            _decide(done, path, base.get(path), yours.get(path), new)
    return done


def _decide(
    done: Update, path: str, base: bytes | None, yours: bytes | None, theirs: bytes | None
) -> None:
    if theirs in (base, yours):
        return
    if yours == base:
        done.write[path] = theirs
    elif yours is None or path in YOURS:
        return  # deleted, or rewritten: so it stays
    elif theirs is None:
        if matches(path, OURS):
            done.write[path] = None
            done.replaced.append(path)
        else:
            done.no_longer.append(path)
    elif base is None:
        done.taken.append(path)
    else:
        text, left_out = merged(base, yours, theirs)
        if left_out and path.endswith(".py"):  # half of each would be no program
            text = theirs if matches(path, OURS) else yours
        elif left_out and matches(path, OURS):
            text = theirs
        if text != yours:
            done.write[path] = text
        if left_out:
            (done.replaced if text == theirs else done.settled).append(path)


def matches(path: str, patterns: Collection[str]) -> bool:
    """Whether a path is one of some names, or lies in one of some folders."""
    return any(fnmatch(path, p) or path.startswith(f"{p.rstrip('/')}/") for p in patterns)
