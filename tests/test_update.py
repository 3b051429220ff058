"""`make update`: projects of earlier commits, edited as over months, come to the newest one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from baking import PROJECT, TEMPLATE, bake_from, files_of
from edits import edit, lost

sys.path.insert(0, str(TEMPLATE / PROJECT / "engine/src"))
from onecurve.update.merge import update
from onecurve.update.notes import notes

ENGINE = "{{cookiecutter.project_slug}}/engine/pyproject.toml"
NOBODY = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *NOBODY, *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of this checkout, with a commit of what is not committed here."""
    clone = tmp_path_factory.mktemp("newest") / "template"
    subprocess.run(["git", "clone", "--quiet", str(TEMPLATE), str(clone)], check=True)
    git(clone, "rm", "-r", "--quiet", ".")
    listed = git(TEMPLATE, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (TEMPLATE / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TEMPLATE / name, clone / name)
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--allow-empty", "--message", "newest")
    return clone


def baked_at(newest: Path, commit: str, folder: Path) -> Path:
    """A project as plain cookiecutter makes it, committed."""
    old = folder / "old"
    subprocess.run(["git", "clone", "--quiet", str(newest), str(old)], check=True)
    git(old, "checkout", "--quiet", commit)
    # Cookiecutter imports the template's own, which must not be the one of this checkout.
    answers, path = sys.modules.pop("template_answers", None), sys.path
    sys.path = [entry for entry in path if Path(entry).resolve() != TEMPLATE]
    try:
        project = bake_from(old, folder / "out")
    finally:
        sys.modules.pop("template_answers", None)
        sys.path = path
        if answers:
            sys.modules["template_answers"] = answers
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "baked")
    return project


def run_update(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, "-m", "onecurve.update", *arguments],
        cwd=project,
        env={**os.environ, "PATH": beside, "PYTHONPATH": str(TEMPLATE / PROJECT / "engine/src")},
        capture_output=True,
        text=True,
        check=False,
    )


def start(name: str, newest: Path) -> str:
    """A commit to begin with; nothing where this checkout is too shallow to have it."""
    moved = git(newest, "log", "--format=%H", "--diff-filter=A", "--", ENGINE).splitlines()
    return {
        "20 commits back": git(newest, "rev-parse", "--verify", "-q", "HEAD~20"),
        "before the engine moved": moved and git(newest, "rev-parse", "-q", f"{moved[-1]}^"),
        "the first": git(newest, "rev-list", "--max-parents=0", "HEAD"),
    }[name] or ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "20 commits back",
        pytest.param("before the engine moved", marks=pytest.mark.long),
        pytest.param("the first", marks=pytest.mark.long),
    ],
)
def test_edits_of_months_meet_no_conflict(tmp_path: Path, newest: Path, name: str) -> None:
    if (
        not (commit := start(name, newest))
        or git(TEMPLATE, "rev-parse", "--is-shallow-repository") == "true"
    ):
        pytest.skip("this checkout has no history; git fetch --unshallow, and this runs")
    project = baked_at(newest, commit, tmp_path)
    edit(project)
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "months")
    done = run_update(project, "--template", str(newest))
    assert done.returncode == 0, done.stderr
    changed = git(project, "status", "--porcelain", "--untracked-files=all", "--no-renames")
    assert f"\n{len(changed.splitlines())} files changed" in done.stdout
    assert lost(project) == []
    files = files_of(project)
    assert [name for name in files if name.endswith((".rej", ".orig"))] == []
    marked = [n for n in files if b"\n<<<<<<<" in (project / n).read_bytes()]
    assert marked == []
    fresh = bake_from(newest, tmp_path / "fresh")
    theirs = files_of(fresh)
    assert {n for n in files if n.startswith("engine/")} == {
        n for n in theirs if n.startswith("engine/")
    }
    same = {n for n in theirs & files if (project / n).read_bytes() == (fresh / n).read_bytes()}
    assert {n for n in theirs if n.startswith(("engine/", "docs/"))} <= same
    # What the update is worth: the project's own look at every file, and a short training.
    chosen = "says_what or wins_over or test_wide or experiment/mine or callbacks/checkpoint"
    quick = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen]
    tried = subprocess.run(
        [sys.executable, *quick, "tests/test_configs.py", "tests/test_mine.py"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": f"{project}/engine/src:{project}/src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stdout[-3000:]
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "updated")
    again = run_update(project, "--template", str(newest))
    assert "already" in again.stdout, again.stderr


def test_refusals_are_one_line_and_change_nothing(tmp_path: Path, newest: Path) -> None:
    project = baked_at(newest, "HEAD", tmp_path)
    before = git(project, "rev-parse", "HEAD")
    for typed, words in {
        ("--checkout", "v9"): "--checkout v9:",
        ("--template", str(tmp_path / "nowhere")): "nowhere: no template can be cloned from there",
    }.items():
        refused = run_update(project, *typed)
        assert (refused.returncode, refused.stdout) == (2, ""), refused
        assert refused.stderr.count("\n") == 1
        assert words in refused.stderr
    assert git(project, "status", "--porcelain") == ""
    (project / "train.py").write_text("mine")
    refused = run_update(project)
    assert refused.returncode == 2
    assert "not committed: train.py" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert (git(project, "rev-parse", "HEAD"), files_of(project)) == (before, files_of(project))
    assert (
        f'commit = "{git(newest, "rev-parse", "HEAD")}"'
        in (project / ".cookiecutter-lightning.toml").read_text()
    )


def test_whose_change_wins() -> None:
    """Each case: as baked, yours, the template's, and what comes of it (None: no file)."""
    cases = {
        "README.md": (b"a\n", b"mine\n", b"b\n", b"mine\n"),
        "untouched.md": (b"a\n", b"a\n", b"b\n", b"b\n"),
        "gone.yaml": (b"a\n", None, b"b\n", None),
        "new.yaml": (None, None, b"b\n", b"b\n"),
        "both_new.yaml": (None, b"mine\n", b"b\n", b"mine\n"),
        "removed.py": (b"a\n", b"a\n", None, None),
        "removed_but_mine.py": (b"a\n", b"mine\n", None, b"mine\n"),
        # Lines beside each other, of which git says that they conflict.
        "configs/a.yaml": (b"a: 1\nb: 2\n", b"a: 7\nb: 2\n", b"a: 1\nb: 3\n", b"a: 7\nb: 3\n"),
        "configs/b.yaml": (b"a: 1\n", b"a: 1\nm: 1\n", b"a: 1\nt: 2\n", b"a: 1\nm: 1\nt: 2\n"),
        "configs/c.yaml": (b"a: 1\n", b"a: 5\n", b"a: 2\n", b"a: 5\n"),
        "src/c.py": (b"a = 1\n", b"b = 0\na = 1\n", b"a = 2\n", b"b = 0\na = 2\n"),
        "tests/test_configs.py": (b"a = 1\n", b"a = 5\n", b"a = 2\n", b"a = 2\n"),
    }
    baked, mine, theirs, expected = (
        {name: text for name, case in cases.items() if (text := case[i]) is not None}
        for i in range(4)
    )
    done = update(baked, mine, theirs)
    after = {name: text for name, text in {**mine, **done.write}.items() if text is not None}
    assert after == expected
    assert done.settled == ["configs/c.yaml"]
    assert done.replaced == ["tests/test_configs.py"]
    assert done.no_longer == ["removed_but_mine.py"]
    assert done.taken == ["both_new.yaml"]
    assert update(baked, mine, theirs, skip=["configs", "src/*"]).settled == []


def test_notes_are_those_between_two_changelogs() -> None:
    old = "## 1\n\n### To update\n\n- a\n  b\n\n### Added\n\n- c\n"
    new = "## 2\n\n### To update\n\n- d\n\n" + old.replace("a\n  b", "a b")
    assert notes(old, new) == ["- d"]
    assert notes("", new) == ["- d", "- a b"]
