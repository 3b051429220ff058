"""The last steps in the new folder: keep what was chosen, `git init`, say what comes next."""

import shlex
import shutil
import subprocess
from pathlib import Path

# Each one of a fixed list, hence safe between quotes.
CI = "{{ cookiecutter.ci }}"
STARTER = "{{ cookiecutter.starter }}"
NOT_FOR = {
    "github": [".gitlab-ci.yml"],
    "gitlab": [".github"],
    "none": [".github", ".gitlab-ci.yml"],
}

LEFT_BY_TOOLS = [
    *("__pycache__", ".venv", "build", "dist", "*.egg-info", ".coverage", "runs"),
    *(".import_linter_cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".schemas"),
]


def main() -> None:
    """Run in the project's folder, as Cookiecutter does; running it again changes nothing."""
    project = Path.cwd()
    for name in NOT_FOR[CI]:
        remove(project / name)
    fill(project, project / "starters" / STARTER)
    remove(project / "starters")
    # The engine is edited and tested in the template, and copied as it lies there.
    for pattern in LEFT_BY_TOOLS:
        for path in list((project / "engine").rglob(pattern)):
            remove(path)
    if shutil.which("git") and not in_repository(project):
        # `git init -b main` would need git 2.28.
        subprocess.run(["git", "-c", "init.defaultBranch=main", "init", "--quiet"], check=False)
    print(f"\n{project.name} is ready. Next, type:\n")
    print(f"  cd {shlex.quote(str(project))}")
    print("  make setup")
    print("  .venv/bin/python train.py\n", flush=True)


def fill(project: Path, starter: Path) -> None:
    """Move what a starter brings to the same places in the project."""
    # The project's README has taken it in.
    (starter / "README.md").unlink(missing_ok=True)
    for path in sorted(starter.rglob("*")):
        if path.is_file():
            place = project / path.relative_to(starter)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)


def remove(path: Path) -> None:
    """Delete a file or a whole folder, where it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def in_repository(folder: Path) -> bool:
    """Whether a git repository holds the folder; a worktree's `.git` is a file."""
    return any((parent / ".git").exists() for parent in [folder, *folder.parents])


main()
