"""A project as it lies there: what git says of it, and what it says of its origin."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError, some_of
from .commands import answer, git
from .template import RECORD


class Project:
    """A folder with a project that this template has made.

    Attributes:
        address: Where its template lies, if it says so.
        commit: The template's commit that it was baked at, or last updated to; or nothing.
        answers: What was answered, by question; empty where it is not recorded.
        skip: Names and patterns that `.cruft.json` excepts from updates.
    """

    def __init__(self, folder: Path) -> None:
        """Read what is recorded.

        Raises:
            UserError: If it is no project in git, or holds changes that are not committed.
        """
        self.folder = folder
        if not (folder / "pyproject.toml").exists() or not (folder / "configs").is_dir():
            raise UserError(f"{folder}: no project is there; give its folder")
        if answer(["git", "-C", str(folder), "rev-parse", "--git-dir"]).returncode:
            raise UserError(
                f"{folder}: not in git, by which an update can be looked at and taken back; try "
                "git init && git add --all && git commit -m 'Before the update'"
            )
        changed = git(folder, "status", "--porcelain", "--untracked-files=all", "--", ".")
        if names := [line[3:] for line in changed.splitlines()]:
            raise UserError(
                f"changes that are not committed: {some_of(names)}; an update needs none, so "
                "that you see what it does: commit them, or git stash --include-untracked"
            )
        cruft = _json(folder / ".cruft.json")
        own = _toml(folder / RECORD)
        self.address = str(own.get("template") or cruft.get("template") or "")
        self.commit = str(own.get("commit") or cruft.get("commit") or "")
        self.engine = str(own.get("engine") or "")
        answers: dict[str, Any] = own.get("answers") or cruft.get("context", {}).get(
            "cookiecutter", {}
        )
        self.answers = {k: str(v) for k, v in answers.items() if not k.startswith("_")}
        self.skip = list(cruft.get("skip", []))

    def blobs(self) -> dict[str, str]:
        """The hashes that git has of its files, by their path."""
        rows = (row.partition("\t") for row in git(self.folder, "ls-files", "-sz").split("\0"))
        return {path: head.split()[1] for head, _, path in rows if path}

    def read(self, path: str) -> bytes | None:
        """A file, or None where there is none."""
        place = self.folder / path
        return place.read_bytes() if place.is_file() else None

    def package(self) -> str:
        """The folder under `src` that is the user's package."""
        found = [path.parent.name for path in (self.folder / "src").glob("*/__init__.py")]
        found = [name for name in found if name != "hydra_plugins"]
        if len(found) != 1:
            raise UserError(f"{self.folder}: src/ holds {len(found)} packages instead of one")
        return found[0]

    def guessed_answers(self, starters: Mapping[str, int]) -> dict[str, str]:
        """What was answered, as far as the files tell; for projects without a record.

        Args:
            starters: How many files it has of each starter.
        """
        about = _toml(self.folder / "pyproject.toml").get("project", {})
        people = about.get("authors", [{}])[0]
        title = re.search(r"^# (.+)$", self._first_readme(), re.MULTILINE)
        train = (self.read("configs/train.yaml") or b"").decode(errors="replace")
        loggers = re.search(r"- (?:override )?/?logger: *(.*)", train)
        chosen = re.findall("tensorboard|wandb", loggers[1]) if loggers else []
        licence = about.get("license", "MIT")
        return {
            "project_name": title[1].strip() if title else about["name"],
            "project_slug": about["name"],
            "package_name": self.package(),
            "description": about.get("description", ""),
            "author": people.get("name", "Your Name"),
            "email": people.get("email", "you@example.com"),
            "license": "Proprietary" if "Proprietary" in str(licence) else str(licence),
            "python": about.get("requires-python", ">=3.11").removeprefix(">="),
            "starter": max(starters, key=lambda name: starters[name]) if starters else "images",
            "logger": chosen[0] if chosen else "csv",
            "ci": "github" if (self.folder / ".github").exists()
            else "gitlab" if (self.folder / ".gitlab-ci.yml").exists() else "none",
        }  # fmt: skip

    def _first_readme(self) -> str:
        """The template's, which had the project's name; the user's of now may have another."""
        added = git(self.folder, "log", "--diff-filter=A", "--format=%H", "--", "README.md")
        if not added:
            return ""
        return git(self.folder, "show", f"{added.split()[-1]}:./README.md")


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except ValueError:
        raise UserError(f"{path.name}: is not JSON; take it from git again") from None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"{path.name}: {error}; take it from git again") from None
