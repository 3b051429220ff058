"""What happens around the files: the repository, the folder, the closing lines."""

import shutil
import subprocess
from pathlib import Path

import pytest
from baking import TEMPLATE, bake, files_of
from clones import git


def test_a_new_project_is_a_repository_without_a_commit(plain: Path) -> None:
    assert (plain / ".git" / "HEAD").read_text() == "ref: refs/heads/main\n"
    assert not any((plain / ".git" / "objects").glob("??"))


def test_inside_a_repository_there_is_no_second_one(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")  # of a worktree
    assert not (bake(tmp_path / "some" / "folder") / ".git").exists()


def test_without_git(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("git") is None
    project = bake(tmp_path / "without")
    assert not (project / ".git").exists()
    # Nobody knows the commit then.
    left = {name for name in files_of(project) if not name.startswith("vendor/")}
    assert left == {n for n in files_of(plain) if not n.startswith("vendor/")} - {".cruft.json"}
    assert (project / "vendor/onecurve-0.2.0+archive.tar.gz").is_file()


@pytest.mark.parametrize("folder", ["plain", "with space", 'it\'s 100 % "mine"', "ünïcode 🔥"])
def test_the_closing_lines_are_commands(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], folder: str
) -> None:
    project = bake(tmp_path / folder)
    shown = capfd.readouterr()
    assert shown.out == ""
    lines = [line.strip() for line in shown.err.splitlines() if line.startswith("  ")]
    *until_commit, setup, activate, train = lines
    names = [
        f"GIT_{who}_{what}=a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    ]
    typed = f"export {' '.join(names)}; {' && '.join(until_commit)} > /dev/null; pwd"
    done = subprocess.run(["sh", "-c", typed], capture_output=True, text=True, check=True)
    assert done.stdout == f"{project}\n"
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "ls-files", "train.py") == "train.py"
    assert (setup, train) == ("make setup", "python train.py")
    assert "\nsetup:" in (project / "Makefile").read_text()
    for page in (project / "README.md", TEMPLATE / "README.md"):
        assert f"\n{activate}\n" in page.read_text(encoding="utf-8")


MINE = {
    **dict.fromkeys(("README.md", "constraints.txt", "configs/train.yaml"), "# edited"),
    **dict.fromkeys(("configs/model/lenet.yaml", "src/my_project/models/lenet.py"), "# edited"),
    **dict.fromkeys((".cruft.json", "src/my_project/__init__.py"), "# edited"),
    **dict.fromkeys(("Dockerfile", ".gitlab-ci.yml", ".github/workflows/test.yml"), "mine"),
    **dict.fromkeys((".github/workflows/mine.yml", "deploy/katib.yaml", "deploy/mine.sh"), "mine"),
    **dict.fromkeys(("starters/mine.txt", "starters/images/README.md", "runs/a.json"), "mine"),
}


@pytest.mark.parametrize("over", ["skip", "overwrite"])
def test_a_bake_over_a_project_touches_what_it_brings_alone(tmp_path: Path, over: str) -> None:
    project = bake(tmp_path / "out", ci="none")
    baked = {name: (project / name).read_bytes() for name in files_of(project)}
    for name, text in MINE.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    (project / "configs/model/resnet.yaml").unlink()
    bake(tmp_path / "out", over=over, ci="none")
    kept = {name: text.encode() for name, text in MINE.items()}
    assert files_of(project) == {*baked, *kept}
    expected = {**baked, **kept} if over == "skip" else {**kept, **baked}
    assert {name: (project / name).read_bytes() for name in files_of(project)} == expected
