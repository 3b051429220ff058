"""Bake a project in this process, as the `cookiecutter` command does, and leave the home alone."""

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml
from cookiecutter.main import cookiecutter

from template_checkout import from_images

TEMPLATE = Path(__file__).parents[1]
LIBRARY = TEMPLATE / "onecurve"
PROJECT = "{{cookiecutter.project_slug}}"
PACKAGE = "{{cookiecutter.package_name}}"
# How each kind of file of a project is read.
PARSERS: dict[str, Callable[[str], object]] = {
    ".toml": tomllib.loads,
    ".yaml": lambda text: list(yaml.safe_load_all(text)),
    ".yml": lambda text: list(yaml.safe_load_all(text)),
    ".json": json.loads,
    ".py": lambda text: ast.parse(text, feature_version=(3, 11)),
}


def bake(output: Path, over: str = "", **answers: str) -> Path:
    """Bake into `output`, perhaps over a project ("skip" or "overwrite"), and return its folder."""
    own = output.parent / f"{output.name}-cookiecutter"
    own.mkdir(parents=True, exist_ok=True)
    settings = own / "settings.yaml"
    folders = {"replay_dir": str(own / "replay"), "cookiecutters_dir": str(own)}
    settings.write_text(json.dumps(folders, ensure_ascii=False))  # JSON is YAML too
    project = cookiecutter(
        str(TEMPLATE),
        no_input=True,
        extra_context=answers,
        output_dir=str(output),
        config_file=str(settings),
        overwrite_if_exists=bool(over),
        skip_if_file_exists=over == "skip",
    )
    return Path(project)


def environment_of(project: Path) -> dict[str, str]:
    """For commands of a bake: its own package, and the library of this checkout."""
    paths = os.pathsep.join(map(str, (LIBRARY / "src", project / "src")))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def run_in(
    folder: Path, *command: str | Path, env: Mapping[str, str] = os.environ, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, and keep what it prints and its exit status."""
    return subprocess.run(
        command, cwd=folder, env=env, input=typed, capture_output=True, text=True, check=False
    )


def python_in(project: Path, *arguments: str) -> str:
    """What Python prints in a bake, with its own package; it must succeed."""
    done = run_in(project, sys.executable, *arguments, env=environment_of(project))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def checked(project: Path, *arguments: str) -> str:
    """What pytest prints of the template's own tests of a bake, tests/project, in `checks/`."""
    own = {file.name for file in (project / "tests").glob("small_data.py")}
    shutil.copytree(
        TEMPLATE / "tests/project",
        project / "checks",
        dirs_exist_ok=True,
        ignore=lambda folder, names: own.intersection(names),
    )
    return python_in(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


ONE_AFTER_THE_OTHER = """
import json, sys
from pathlib import Path
from onecurve.testing.runs import run_script

for script, *arguments in json.loads(sys.argv[1]):
    status = run_script(Path(script).resolve(), *arguments)
    assert status == 0, (script, arguments, status)
"""


def scripts_in(project: Path, *lines: str) -> str:
    """What scripts of a bake print that run in one process: torch is imported once."""
    typed = json.dumps([shlex.split(line) for line in lines])
    return python_in(project, "-c", ONE_AFTER_THE_OTHER, typed)


def make(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of a Makefile, with more variables in its environment."""
    command = ("make", "--no-print-directory", *arguments)
    return run_in(project, *command, env=os.environ | environment)


def files_of(project: Path) -> set[str]:
    """Every file of a bake, relative to its folder, without git's own."""
    paths = (path.relative_to(project) for path in project.rglob("*") if not path.is_dir())
    return {path.as_posix() for path in paths if path.parts[0] != ".git"}


def template_files(starter: str = "images") -> dict[str, Path]:
    """What the template would bake if no choice but the starter left anything out.

    Returns:
        For each file's place in a project of the default package name, the file of the template.
    """
    which = ("-z", "--cached", "--others", "--exclude-standard", "--", PROJECT)
    listing = run_in(TEMPLATE, "git", "ls-files", *which).stdout
    assert listing
    files = {}
    shared = from_images(PACKAGE, starter)
    for path in sorted({TEMPLATE / name for name in listing.split("\0") if name}):
        parts = path.relative_to(TEMPLATE / PROJECT).parts
        if parts[0] == "starters":
            is_shared = parts[1] == "images" and "/".join(parts[2:]) in shared
            is_own = parts[1] == starter and parts[2:] != ("README.md",)
            parts = parts[2:] if is_own or is_shared else ()
        if parts and path.exists():
            files["/".join(parts).replace(PACKAGE, "my_project")] = path
    return files
