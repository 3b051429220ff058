"""The last steps in the new folder: keep what was chosen, `git init`, say what comes next."""

import runpy
import shlex
import shutil
import subprocess
from pathlib import Path

# Each one of a fixed list, hence safe between quotes.
CI = "{{ cookiecutter.ci }}"
CLUSTER = "{{ cookiecutter.cluster }}"
STARTER = "{{ cookiecutter.starter }}"
ON_KUBERNETES = [
    *(".dockerignore", "Dockerfile", "docs/cluster.md"),
    *(f"deploy/{name}.yaml" for name in ("katib", "pytorchjob", "trainjob", "volume")),
]
# What an answer does not want: of the service that tests, and of the cluster.
NOT_FOR = {
    ("ci", "github"): [".gitlab-ci.yml"],
    ("ci", "gitlab"): [".github"],
    ("ci", "none"): [".github", ".gitlab-ci.yml"],
    ("cluster", "none"): ["deploy", *ON_KUBERNETES],
    ("cluster", "slurm"): ON_KUBERNETES,
    ("cluster", "kubernetes"): ["deploy/train.sbatch"],
}

LEFT_BY_TOOLS = [
    *("__pycache__", ".venv", "build", "dist", "*.egg-info", ".coverage", "runs"),
    *(".import_linter_cache", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".schemas"),
]


def main() -> None:
    """Run in the project's folder, as Cookiecutter does; running it again changes nothing."""
    project = Path.cwd()
    for name in [*NOT_FOR["ci", CI], *NOT_FOR["cluster", CLUSTER]]:
        remove(project / name)
    fill(project, project / "starters" / STARTER)
    remove(project / "starters")
    # The engine is edited and tested in the template, and copied as it lies there.
    for pattern in LEFT_BY_TOOLS:
        for path in list((project / "engine").rglob(pattern)):
            remove(path)
    note_engine(project)
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


def note_engine(project: Path) -> None:
    """Write down what the engine is like now, so that `make update` knows whether it was edited."""
    fingerprint = runpy.run_path(str(project / "engine/src/onecurve/update/fingerprint.py"))
    files = [path for path in (project / "engine").rglob("*") if path.is_file()]
    record = project / ".cookiecutter-lightning.toml"
    lines = record.read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("engine = ")]
    lines.append(f'engine = "{fingerprint["fingerprint"](project, files)}"')
    record.write_text("\n".join(lines) + "\n", encoding="utf-8")


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
