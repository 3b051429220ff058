"""A clone of the template: its commits, and the projects that they make."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import UserError
from .commands import answer, cruft, git, in_bytes, last_line

ROOM = "{{cookiecutter.project_slug}}"
RECORD = ".cookiecutter-lightning.toml"
SHORT = {
    "gh": "https://github.com/{}.git",
    "gl": "https://gitlab.com/{}.git",
    "bb": "https://bitbucket.org/{}",
}


class Template:
    """All commits of the template at an address, in a folder of this machine."""

    def __init__(self, address: str, folder: Path) -> None:
        """Clone it.

        Raises:
            UserError: If nothing can be cloned from there.
        """
        begin, _, rest = address.partition(":")
        is_folder = Path(address).is_dir()
        address = str(Path(address).resolve()) if is_folder else address
        self.address = SHORT[begin].format(rest) if begin in SHORT else address
        self.folder = folder
        done = answer(["git", "clone", "--quiet", "--no-checkout", self.address, str(folder)])
        if done.returncode:
            raise UserError(
                f"{self.address}: no template can be cloned from there ({last_line(done)}); try "
                "make update TEMPLATE=, followed by an address or a folder"
            )
        # A folder of this machine is often a clone itself, and others have only its origin.
        origin = answer(["git", "-C", self.address, "config", "remote.origin.url"])
        known = origin.stdout.decode().strip() if Path(self.address).is_dir() else ""
        self.known_as = re.sub(r"(?<=://)[^/@]*@", "", known or self.address)
        if not self.find("HEAD") or not self.read("HEAD", "cookiecutter.json"):
            raise UserError(f"{self.address}: no template for Cookiecutter is there")

    def find(self, name: str) -> str:
        """The commit that a tag, a branch or a part of a hash stands for, or nothing."""
        for ref in (f"refs/tags/{name}", f"refs/remotes/origin/{name}", name):
            done = answer(
                ["git", "-C", str(self.folder), "rev-parse", "--verify", "-q", f"{ref}^{{commit}}"]
            )
            if not done.returncode:
                return done.stdout.decode().strip()
        return ""

    def commit(self, name: str) -> str:
        """The same.

        Raises:
            UserError: If it stands for none.
        """
        if commit := self.find(name):
            return commit
        tags = git(self.folder, "tag", "--sort=-creatordate").split()
        known = ", ".join(tags[:5] or ["main"])
        raise UserError(
            f"--checkout {name}: {self.address} has no tag, branch or commit of that name; "
            f"try one of {known}"
        )

    def read(self, commit: str, path: str) -> str:
        """A file of a commit; nothing, if it has none."""
        done = answer(["git", "-C", str(self.folder), "show", f"{commit}:{path}"])
        return "" if done.returncode else done.stdout.decode(errors="replace")

    def version(self, commit: str) -> str:
        """The version that a commit calls itself, with the begin of its hash."""
        said = json.loads(self.read(commit, "cookiecutter.json") or "{}").get("_version", "")
        return f"{said} ({commit[:10]})".strip()

    def blobs(self, commit: str) -> dict[str, str]:
        """Hashes of a commit's files by their path in the project's folder."""
        listed = in_bytes(self.folder, "ls-tree", "-rz", commit, "--", ROOM).decode()
        rows = (row.partition("\t") for row in listed.split("\0") if row)
        return {path.removeprefix(f"{ROOM}/"): head.split()[2] for head, _, path in rows}

    def history(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Each commit of the default branch, oldest first, with the hashes that it has changed.

        A file that it removes has none.
        """
        command = ("log", "--first-parent", "-m", "--reverse", "--raw", "--no-renames", "-z")
        shape = ("--no-abbrev", "--format=%x00%x00%H", "HEAD", "--", ROOM)
        for entry in git(self.folder, *command, *shape).split("\0\0\0"):
            commit, *rows = entry.strip("\0\n").split("\0")
            changed = {}
            for head, path in zip(rows[::2], rows[1::2], strict=True):
                blob = head.split()[3]
                changed[path.removeprefix(f"{ROOM}/")] = blob.strip("0") and blob
            yield commit, changed

    def bake(self, commit: str, answers: Mapping[str, str], into: Path) -> Path:
        """Make a project of a commit, as cruft does, with its `.cruft.json`.

        Answers to questions that the commit does not ask are left out, and new questions have
        their default.
        """
        asked = json.loads(self.read(commit, "cookiecutter.json"))
        known = {name: value for name, value in answers.items() if name in asked}
        for name, choices in asked.items():
            if isinstance(choices, list) and known.get(name, choices[0]) not in choices:
                raise UserError(
                    f"answers.{name}: {known[name]!r} is no choice of the template at "
                    f"{commit[:10]}; in {RECORD}, take one of {', '.join(choices)}"
                )
        into.mkdir(parents=True)
        cruft(
            *("create", str(self.folder), "--checkout", commit, "--no-input", "--default-config"),
            *("--extra-context", json.dumps(known), "--output-dir", str(into)),
        )
        (project,) = (path for path in into.iterdir() if path.is_dir())
        self._name_the_address(project)
        return project

    def _name_the_address(self, project: Path) -> None:
        """It was baked from a clone here, and comes from there; later commits are for it, too."""
        here, there = (json.dumps(str(x), ensure_ascii=False) for x in (self.folder, self.known_as))
        cruft = project / ".cruft.json"
        known = json.loads(cruft.read_text(encoding="utf-8"))
        cruft.write_text(json.dumps({**known, "checkout": None}, indent=2) + "\n")
        for path in (project / RECORD, cruft):
            if path.exists():
                text = path.read_text(encoding="utf-8").replace(here, there)
                path.write_text(text, encoding="utf-8")
