"""`make update`: edited projects come to a newer commit of the template, by cruft."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from baking import PROJECT, TEMPLATE, environment_of, make, python_in, run_in
from clones import clone, commit, git
from edits import CHANGED, edit, lost
from readme import bash

BIN = Path(sys.executable).parent
OLD_LAYOUT = "21a90cb"  # the last commit whose projects hold the library, in engine/
# What the template changes, a commit each, where nobody has edited anything.
NEWER = {
    f"{PROJECT}/configs/optimizer/adam.yaml": ("lr: 1e-3", "lr: 2e-3"),
    f"{PROJECT}/configs/scheduler/cosine.yaml": ("warmup: 0.05", "warmup: 0.1"),
    f"{PROJECT}/configs/train.yaml": ("mode: ", "# How it is compared.\nmode: "),
    f"{PROJECT}/Makefile": ("clean: ## remove", "clean: ## take away"),
    f"{PROJECT}/pyproject.toml": ("pytest>=8.3", "pytest>=8.4"),
    f"{PROJECT}/docs/tasks.md": ("# Tasks", "# Of tasks"),
    "onecurve/src/onecurve/errors.py": ('"""', '"""Newer: '),
    "hooks/post_gen_project.py": ("is ready. Next, type", "is there. Next, type"),
}


@pytest.fixture
def template(tmp_path: Path) -> Path:
    return clone(tmp_path / "template")


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment whose uv installs nothing: what is installed is that of these tests."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "uv").write_text("#!/bin/sh\n")
    (folder / "uv").chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def baked(template: Path, folder: Path) -> Path:
    """A project by plain cookiecutter, edited as over months, and committed."""
    bake = [str(BIN / "cookiecutter"), str(template), "--no-input", "--default-config"]
    subprocess.run([*bake, "--output-dir", str(folder)], check=True, capture_output=True)
    project = folder / "my-project"
    commit(project, "baked")
    edit(project)
    commit(project, "months")
    return project


def update(project: Path, programs: dict[str, str], *arguments: str) -> tuple[int, str]:
    by = (f"CRUFT={BIN}/cruft", f"VENV={BIN.parent}")
    done = make(project, "update", *by, *arguments, **environment_of(project) | programs)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_edits_of_months_meet_no_conflict(
    template: Path, tmp_path: Path, programs: dict[str, str]
) -> None:
    project = baked(template, tmp_path / "out")
    for name, (old, new) in NEWER.items():
        text = (template / name).read_text(encoding="utf-8")
        assert old in text, name
        (template / name).write_text(text.replace(old, new, 1), encoding="utf-8")
        commit(template, f"Newer: {name}")
    newest = git(template, "rev-parse", "HEAD")
    status, shown = update(project, programs)
    assert (status, "Updated, not committed" in shown) == (0, True), shown
    assert lost(project) == []
    for name, (_, new) in NEWER.items():
        if name.startswith(PROJECT):
            text = (project / name.removeprefix(f"{PROJECT}/")).read_text(encoding="utf-8")
            assert new in text, name
    (archive,) = (project / "vendor").iterdir()
    assert archive.name == f"onecurve-0.2.0+g{newest[:7]}.tar.gz"
    for name in ("pyproject.toml", "constraints.txt"):
        assert newest[:7] in (project / name).read_text(encoding="utf-8")
    assert json.loads((project / ".cruft.json").read_text())["commit"] == newest
    assert re.findall(r"<<<<<<<|\.rej", git(project, "diff", "HEAD", "--", ".")) == []
    # What the update is worth: the project's own look at every file, and a short training.
    quick = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "says_what or experiment/mine"]
    python_in(project, *quick, "tests/test_configs.py")
    commit(project, "updated")
    status, shown = update(project, programs)
    assert (status, "up to date" in shown) == (0, True), shown


def test_a_conflict_is_named_and_nothing_installed(
    template: Path, tmp_path: Path, programs: dict[str, str]
) -> None:
    project = baked(template, tmp_path / "out")
    file = template / PROJECT / "configs/optimizer/adamw.yaml"
    file.write_text(file.read_text().replace("lr: 1e-3", "lr: 5e-3"))
    commit(template, "Another learning rate")
    status, shown = update(project, programs)
    assert status != 0
    assert "conflict: configs/optimizer/adamw.yaml" in shown.splitlines(), shown
    assert "Updated" not in shown
    text = (project / "configs/optimizer/adamw.yaml").read_text()
    ours, theirs = re.findall(r"<<<<<<<.*?\n(.*?)=======\n(.*?)>>>>>>>", text, re.DOTALL)[0]
    assert ("lr: 3e-4" in ours, "lr: 5e-3" in theirs) == (True, True)


def test_the_library_from_a_clone_and_what_is_not_committed(
    template: Path, tmp_path: Path, programs: dict[str, str]
) -> None:
    project = baked(template, tmp_path / "out")
    made_from = git(template, "rev-parse", "HEAD")
    commit(template, "Newer")
    (tmp_path / "programs/uv").write_text('#!/bin/sh\necho "uv $*"\n')
    source = tmp_path / "a folder" / "source"
    typed = ("library-source", f"VENV={BIN.parent}", f"SOURCE={source}")
    for _ in range(2):
        done = make(project, *typed, **programs)
        assert done.returncode == 0, done.stderr
        assert f"--no-deps --editable {source}/onecurve\n" in done.stdout
        assert git(source, "rev-parse", "HEAD") == made_from

    done = run_in(project, BIN / "cruft", "diff")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("diff --git ")
    assert "is ready" not in done.stdout + done.stderr
    (project / "train.py").write_text("mine")
    status, shown = update(project, programs)
    assert status != 0
    assert "unclean git project" in shown
    (project / ".cruft.json").unlink()
    status, shown = update(project, programs)
    assert status == 2
    assert "error: .cruft.json is missing" in shown


@pytest.mark.long
def test_a_project_of_the_old_layout_moves_over_as_the_page_says(
    template: Path, tmp_path: Path, programs: dict[str, str]
) -> None:
    if git(TEMPLATE, "rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("this checkout has no history; git fetch --unshallow, and this runs")
    old = tmp_path / "old"
    git(template, "worktree", "add", "--quiet", "--detach", str(old), OLD_LAYOUT)
    try:
        project = baked(old, tmp_path / "out")
    finally:
        git(template, "worktree", "remove", "--force", str(old))
    record = project / ".cookiecutter-lightning.toml"
    record.write_text(record.read_text().replace(str(old), str(template)))
    commit(project, "where the template lies now")
    page = (TEMPLATE / "docs/moving.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    script = script.replace("uvx cruft", f"{BIN}/cruft").replace("make setup", "true")
    bash(script, project)
    # One was rewritten; in the others the template has changed lines beside the edited ones.
    conflicts = git(project, "diff", "--name-only", "--diff-filter=U").splitlines()
    beside = ["Makefile", "configs/train.yaml"]
    assert conflicts == sorted(["README.md", *beside])
    git(project, "checkout", "--ours", "README.md")
    for name in beside:
        git(project, "checkout", "--theirs", name)
        file = project / name
        for line, mine in CHANGED[name]:
            file.write_text(re.sub(line, mine, file.read_text(), count=1))
    commit(project, "moved over")
    assert lost(project) == []
    assert not (project / "engine").exists()
    assert list((project / "vendor").glob("onecurve-*.tar.gz"))
    status, shown = update(project, programs)
    assert (status, "up to date" in shown) == (0, True), shown
    tried = ("train.py", "experiment=mine", "hydra.run.dir=runs/mine")
    python_in(project, *tried)
    assert (project / "runs/mine/metrics.json").is_file()
