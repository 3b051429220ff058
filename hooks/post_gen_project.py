"""The last steps in the new folder: keep what was chosen, `git init`, say what comes next."""

import json
import shlex
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

# Each one of a fixed list, hence safe between quotes.
CI = "{{ cookiecutter.ci }}"
CLUSTER = "{{ cookiecutter.cluster }}"
STARTER = "{{ cookiecutter.starter }}"
ON_KUBERNETES = [
    *(".dockerignore", "Dockerfile"),
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

# The checkout of the template, what was typed for it, and all answers.
KNOWN = json.loads(urllib.parse.unquote("{{ cookiecutter | for_hook }}"))
sys.path.insert(0, KNOWN["template"])
sys.dont_write_bytecode = True
import template_checkout as checkout  # noqa: E402


def main() -> None:
    """Run in the project's folder, as Cookiecutter does; running it again changes nothing."""
    project = Path.cwd()
    for name in [*NOT_FOR["ci", CI], *NOT_FOR["cluster", CLUSTER]]:
        remove(project / name)
    fill(project, project / "starters" / STARTER)
    remove(project / "starters")
    bring_library(project)
    if state := checkout.cruft_state(KNOWN["typed"], KNOWN["answers"]):
        text = json.dumps(state, ensure_ascii=False, indent=2)
        (project / ".cruft.json").write_text(text + "\n", encoding="utf-8")
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


def bring_library(project: Path) -> None:
    """Pin the library's version, and pack it into `vendor/` unless it is a release."""
    pins = project / "constraints.txt"
    pin = f"onecurve=={checkout.library_version()}\n"
    others = pins.read_text(encoding="utf-8").splitlines(keepends=True)
    others = [line for line in others if not line.startswith("onecurve==")]
    pins.write_text("".join([*others, pin]), encoding="utf-8")
    if name := checkout.archive_name():
        (project / "vendor").mkdir(exist_ok=True)
        checkout.write_archive(project / "vendor" / name)


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
