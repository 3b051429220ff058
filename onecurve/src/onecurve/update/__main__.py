"""``make update``: bring a project to a newer template."""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import UserError, stop
from .commands import git
from .fingerprint import fingerprint
from .merge import Update, update
from .nearest import nearest
from .notes import notes
from .project import Project
from .template import RECORD, Template

RECORDS = (RECORD, ".cruft.json")


def main() -> None:
    """Update the project in the current folder, or say in one line why not."""
    parser = argparse.ArgumentParser(prog="make update", allow_abbrev=False)
    parser.add_argument("--project", default=".", help="its folder")
    parser.add_argument("--template", default="", help="address or folder, if it is another now")
    parser.add_argument("--checkout", default="HEAD", help="a tag, branch or commit of it")
    typed = parser.parse_args()
    try:
        with TemporaryDirectory(prefix="update-") as folder:
            bring(Path(typed.project).resolve(), typed.template, typed.checkout, Path(folder))
    except UserError as error:
        stop(error)


def bring(folder: Path, address: str, checkout: str, within: Path) -> None:
    """Update a project, and print what was done.

    Args:
        folder: The project.
        address: Of the template; empty for the one that the project names.
        checkout: The template's commit.
        within: An empty folder for what is needed meanwhile.
    """
    project = Project(folder)
    if not (address or project.address):
        raise UserError(
            "this project does not say where its template lies; type make update TEMPLATE=, "
            "followed by its address or folder"
        )
    template = Template(address or project.address, within / "template")
    after = template.commit(checkout)
    before = template.find(project.commit) if project.commit else ""
    starters: dict[str, int] = {}
    if not before:
        before, starters = nearest(template, project)
        print(f"No commit is recorded that {template.address} knows; the nearest one is taken.")
    answers = project.answers or project.guessed_answers(starters)
    # A part of the words is Cookiecutter's own; the package is the folder that is there.
    answers = {**answers, "package_name": project.package()}
    if before == after and (folder / RECORD).exists():
        print(f"This project is at {template.version(after)} already.")
        return
    print(f"From {template.version(before)} to {template.version(after)} of {template.address}")
    base = files_of(template.bake(before, answers, within / "before"))
    theirs = files_of(template.bake(after, answers, within / "after"))
    yours = {path: text for path in {*base, *theirs} if (text := project.read(path)) is not None}
    records = {name: theirs.pop(name) for name in RECORDS if name in theirs}
    base = {path: text for path, text in base.items() if path not in RECORDS}
    done = update(base, yours, theirs, project.skip)
    if engine_is_untouched(project) and not any("engine".startswith(s) for s in project.skip):
        replace_engine(done, project, theirs)
    wanted = {**done.write, **with_skips(records, project)}
    changed = {path: text for path, text in wanted.items() if project.read(path) != text}
    write(project, changed)
    changelogs = [template.read(commit, "CHANGELOG.md") for commit in (before, after)]
    tell(done, len(changed), notes(*changelogs))


def files_of(folder: Path) -> dict[str, bytes]:
    """All files of a bake, without git's own."""
    found = (path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in found}
    return {name: path.read_bytes() for name, path in named.items() if name[:5] != ".git/"}


def engine_is_untouched(project: Project) -> bool:
    """Whether `engine/` is as it was baked, by the number that was recorded then."""
    files = [project.folder / path for path in project.blobs() if path.startswith("engine/")]
    return bool(project.engine) and project.engine == fingerprint(project.folder, files)


def replace_engine(done: Update, project: Project, theirs: dict[str, bytes]) -> None:
    """All of `engine/` is the newer template's, and nothing else is in it."""
    old = [path for path in project.blobs() if path.startswith("engine/")]
    done.write |= dict.fromkeys(old)
    done.write |= {path: text for path, text in theirs.items() if path.startswith("engine/")}


def with_skips(records: dict[str, bytes], project: Project) -> dict[str, bytes]:
    """What is recorded from now on, with what `.cruft.json` excepted before."""
    if not project.skip or ".cruft.json" not in records:
        return records
    known = {**json.loads(records[".cruft.json"]), "skip": project.skip}
    return records | {".cruft.json": (json.dumps(known, indent=2) + "\n").encode()}


def write(project: Project, files: dict[str, bytes | None]) -> None:
    """Change the project, or nothing of it: a write that fails takes the others back."""
    try:
        for path, text in files.items():
            place = project.folder / path
            if text is None:
                place.unlink(missing_ok=True)
                while not any((place := place.parent).iterdir()):
                    place.rmdir()
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(text)
    except OSError as error:
        git(project.folder, "checkout", "--quiet", "--", ".")
        git(project.folder, "clean", "--quiet", "-d", "--force", "--", ".")
        raise UserError(f"{error}; nothing was changed") from None


def tell(done: Update, changed: int, to_do: list[str]) -> None:
    """Say what is left for the person at the keyboard."""
    said = {
        "yours stayed; the template has changed the same lines": done.settled,
        "yours stayed; the template has another file of that name now": done.taken,
        "yours stayed; the template has it no longer": done.no_longer,
        "the template's now; git show HEAD:./FILE shows yours": done.replaced,
    }
    for words, paths in said.items():
        for path in paths:
            print(f"  {path}: {words}")
    if to_do:
        print("\nTo update your own files:\n")
        print("\n".join(to_do))
    print(f"\n{changed} files changed, nothing committed. Look at them (git diff), then:\n")
    print("  make setup\n  make test", flush=True)


if __name__ == "__main__":
    main()
