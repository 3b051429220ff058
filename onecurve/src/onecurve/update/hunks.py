"""Two people's changes of one text: by git, and where git gives up, line by line."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import UserError
from .commands import answer, last_line

# Longer than what a text such as this page underlines its headings with.
SIZE = 31
HUNK = re.compile(
    rf"^<{{{SIZE}}} .*\n(?P<yours>(?:.*\n)*?)\|{{{SIZE}}} .*\n(?P<base>(?:.*\n)*?)={{{SIZE}}}\n"
    rf"(?P<theirs>(?:.*\n)*?)>{{{SIZE}}} .*\n?",
    re.MULTILINE,
)
# `key: value`, `name==1.0`, `name = "value"`, also commented out: what a line is about.
KEY = re.compile(r"^([\s#\-\"']*[\w./\-\[\]]+?)[\"']?\s*(?::|==|>=|=)")


def merged(base: bytes, yours: bytes, theirs: bytes) -> tuple[bytes, bool]:
    """Both sides' changes of `base`.

    Returns:
        The text, and whether something of theirs was left out: lines that both have changed are
        yours.
    """
    with TemporaryDirectory() as folder:
        places = [Path(folder, name) for name in ("yours", "base", "theirs")]
        for place, text in zip(places, (yours, base, theirs), strict=True):
            place.write_bytes(text)
        command = ["git", "merge-file", "-p", "--diff3", f"--marker-size={SIZE}"]
        done = answer([*command, *map(str, places)])
    if done.returncode == 0:
        return done.stdout, False
    if done.returncode > 127:  # no text
        if b"binary" in done.stderr.lower():
            return yours, True
        raise UserError(f"git merge-file: {last_line(done)}")
    left_out = False

    def settled(hunk: re.Match[str]) -> str:
        nonlocal left_out
        lines, lost = _settled(*(hunk[side].splitlines() for side in ("base", "yours", "theirs")))
        left_out |= lost
        return "".join(f"{line}\n" for line in lines)

    return HUNK.sub(settled, done.stdout.decode()).encode(), left_out


def _settled(base: list[str], yours: list[str], theirs: list[str]) -> tuple[list[str], bool]:
    """One place that both have changed."""
    if not base:  # both have added: all of it, but nothing twice
        known = {_key(line) for line in yours}
        return yours + [line for line in theirs if _key(line) not in known], False
    for longer, other in ((yours, theirs), (theirs, yours)):  # one has only added to it
        if longer[: len(base)] == base:
            return other + longer[len(base) :], False
        if longer[-len(base) :] == base:
            return longer[: -len(base)] + other, False
    if len(base) == len(yours) == len(theirs):
        rows = list(zip(base, yours, theirs, strict=True))
        lost = any(b not in (y, t) and y != t for b, y, t in rows)
        return [t if b == y else y for b, y, t in rows], lost
    keyed = [{_key(line): line for line in lines} for lines in (base, yours, theirs)]
    if [*map(len, keyed)] != [len(base), len(yours), len(theirs)]:
        return yours, True
    was, mine, new = keyed
    lines, lost = [], False
    for key in [*mine, *(key for key in new if key not in mine and key not in was)]:
        y, b, t = mine.get(key), was.get(key), new.get(key)
        lost |= b is not None and b not in (y, t) and y != t
        if (kept := t if y == b or y is None else y) is not None:
            lines.append(kept)
    return lines, lost


def _key(line: str) -> str:
    found = KEY.match(line)
    return found[1] if found else line
