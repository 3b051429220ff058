"""The last steps in the new folder: keep what was chosen, `git init`, say what comes next."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import urllib.parse
from contextlib import suppress
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
    answers = KNOWN["answers"]
    readme = checkout.readme_of(STARTER)
    is_skipping = readme.is_file() and not readme.read_text(encoding="utf-8")
    baked = checkout.places(answers["package_name"])
    for name in [*NOT_FOR["ci", CI], *NOT_FOR["cluster", CLUSTER]]:
        remove(name, baked)
    fill(project, answers["package_name"])
    remove("starters", baked)
    if not (is_skipping and (checkout.ASIDE / "pyproject.toml").exists()):
        bring_library(project)
    if state := checkout.cruft_state(KNOWN["typed"], answers):
        text = json.dumps(state, ensure_ascii=False, indent=2)
        (project / ".cruft.json").write_text(text + "\n", encoding="utf-8")
    bring_back(is_skipping)
    if shutil.which("git") and not in_repository(project):
        # `git init -b main` would need git 2.28.
        subprocess.run(["git", "-c", "init.defaultBranch=main", "init", "--quiet"], check=False)
    if not KNOWN["by_cruft"]:
        say_what_is_next(project)


def say_what_is_next(project: Path) -> None:
    """Commands to type, on stderr; `make update` goes on from a commit."""
    commit = "git add . && git commit --message 'Baked from the template'"
    lines = [f"cd {shlex.quote(str(project))}", *([commit] if shutil.which("git") else [])]
    lines += ["make setup", "source .venv/bin/activate", "python train.py"]
    shown = "\n".join(f"  {line}" for line in lines)
    print(f"\n{project.name} is ready. Next, type:\n\n{shown}\n", file=sys.stderr, flush=True)


def fill(project: Path, package: str) -> None:
    """Move what the starter brings to the same places in the project."""
    starter, images = (project / "starters" / name for name in (STARTER, "images"))
    # The project's README has taken it in.
    (starter / "README.md").unlink(missing_ok=True)
    brought = {path.relative_to(starter): path for path in starter.rglob("*") if path.is_file()}
    brought |= {Path(name): images / name for name in checkout.from_images(package, STARTER)}
    for name, path in brought.items():
        place = project / name
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


def remove(name: str, baked: set[str]) -> None:
    """Delete a file, or what this bake wrote of a folder."""
    for file in baked:
        if file == name or file.startswith(f"{name}/"):
            Path(file).unlink(missing_ok=True)
            with suppress(OSError):  # it has other files
                os.removedirs(Path(file).parent)


def bring_back(is_skipping: bool) -> None:
    """Put back the files that were there before, where this bake has no such file or skips it."""
    for copy in sorted(checkout.ASIDE.rglob("*")):
        place = copy.relative_to(checkout.ASIDE)
        if copy.is_file() and (is_skipping or not place.exists()):
            place.parent.mkdir(parents=True, exist_ok=True)
            copy.replace(place)
    shutil.rmtree(checkout.ASIDE, ignore_errors=True)


def in_repository(folder: Path) -> bool:
    """Whether a git repository holds the folder; a worktree's `.git` is a file."""
    return any((parent / ".git").exists() for parent in [folder, *folder.parents])


main()
