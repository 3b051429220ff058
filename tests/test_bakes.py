"""Each answer about licence, Python, logger, CI and cluster: each bake is born clean."""

import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from baking import PARSERS, PROJECT, TEMPLATE, bake, files_of, make, run_in, template_files
from packaging.version import Version

from template_checkout import archive_name


class Choice(NamedTuple):
    license: str
    python: str
    logger: str
    ci: str
    cluster: str


QUESTIONS = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
DEFAULT, *OTHERS = (
    Choice(*(QUESTIONS[question][which] for question in Choice._fields)) for which in (0, 1, -1)
)
# The default, each other answer alone, and those of other answers only.
ALONE = [
    DEFAULT._replace(**{question: answer})
    for question in Choice._fields
    for answer in QUESTIONS[question][1:]
]
CHOICES = [DEFAULT, *ALONE, *OTHERS]
# What mypy makes of torch, Lightning and Hydra is most of its time.
MYPY_CACHE = TEMPLATE / ".mypy_cache" / "bakes"
TESTED = (TEMPLATE / PROJECT / "constraints.txt").read_text(encoding="utf-8")
(TESTED_TORCH,) = re.findall(r"^torch==(\S+)", TESTED, re.MULTILINE)
needs_todays_types = pytest.mark.skipif(
    Version(version("torch")) < Version(TESTED_TORCH),
    reason="older packages have other types: mypy is for those of constraints.txt and later",
)


# Files that only one answer brings.
ONLY_WITH = {
    ".github/dependabot.yml": ("ci", "github"),
    ".github/workflows/test.yml": ("ci", "github"),
    ".gitlab-ci.yml": ("ci", "gitlab"),
    "deploy/train.sbatch": ("cluster", "slurm"),
    ".dockerignore": ("cluster", "kubernetes"),
    "Dockerfile": ("cluster", "kubernetes"),
    "deploy/katib.yaml": ("cluster", "kubernetes"),
    "deploy/pytorchjob.yaml": ("cluster", "kubernetes"),
    "deploy/trainjob.yaml": ("cluster", "kubernetes"),
    "deploy/volume.yaml": ("cluster", "kubernetes"),
}
# Every answer is in it.
RECORD = ".cruft.json"
# What each choice may change, and has to.
CHANGES = {
    "license": {RECORD, "LICENSE", "pyproject.toml"},
    "python": {
        *(RECORD, ".devcontainer/devcontainer.json", ".github/workflows/test.yml"),
        *("Makefile", "pyproject.toml"),
    },
    "logger": {RECORD, "configs/train.yaml"},
    "ci": {RECORD},
    "cluster": {RECORD},
}
# Not of the folder that is rendered.
BY_THE_HOOK = {RECORD, f"vendor/{archive_name()}"}
UNASKED = {name for name, (asked, answer) in ONLY_WITH.items() if getattr(DEFAULT, asked) != answer}
LICENSES = {
    "MIT": "MIT License",
    "BSD-3-Clause": "BSD 3-Clause License",
    "Apache-2.0": "Apache License",
    "Proprietary": "Copyright",
}
COMMANDS = ["make setup", "make lint", "make test"]


def bake_one(root: Path, choice: Choice) -> Path:
    return bake(root / "-".join(choice), **choice._asdict())


@pytest.fixture(scope="module")
def bakes(tmp_path_factory: pytest.TempPathFactory) -> dict[Choice, Path]:
    root = tmp_path_factory.mktemp("bakes")
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        projects = pool.map(bake_one, itertools.repeat(root), CHOICES)
        return dict(zip(CHOICES, projects, strict=True))


def distinct_files(bakes: dict[Choice, Path]) -> Iterator[tuple[Path, bytes]]:
    """Every file of every bake, but each name and content only once."""
    seen = set()
    for project in bakes.values():
        for name in sorted(files_of(project) - {f"vendor/{archive_name()}"}):
            content = (project / name).read_bytes()
            if (name, content) not in seen:
                seen.add((name, content))
                yield project / name, content


def test_each_bake_has_exactly_its_files(bakes: dict[Choice, Path]) -> None:
    everything = {*template_files(), *BY_THE_HOOK}
    for choice, project in bakes.items():
        left_out = {n for n, (asked, with_) in ONLY_WITH.items() if getattr(choice, asked) != with_}
        assert files_of(project) == everything - left_out, choice
        assert (project / ".github").exists() == (choice.ci == "github"), choice
        assert (project / "deploy").exists() == (choice.cluster != "none"), choice


def test_each_answer_changes_only_what_it_names(bakes: dict[Choice, Path]) -> None:
    default = bakes[DEFAULT]
    for choice in ALONE:
        other = bakes[choice]
        ((question, answer),) = set(choice._asdict().items()) - set(DEFAULT._asdict().items())
        common = files_of(default) & files_of(other)
        changed = {n for n in common if (default / n).read_bytes() != (other / n).read_bytes()}
        assert changed == CHANGES.get(answer, CHANGES[question]), answer


FAULTS = {
    "carriage return": re.compile(r"\r"),
    "blank at the end of a line": re.compile(r"[ \t]$", re.MULTILINE),
    "no newline at the end": re.compile(r"[^\n]\Z"),
    "empty line at the end": re.compile(r"\n\n\Z"),
}
RESIDUE = re.compile(r"\{\{|\{%|\{#|cookiecutter", re.IGNORECASE)
OF_MKDOCS = "docs/site/theme/main.html"


def test_every_file_parses_and_has_no_residue_of_the_template(bakes: dict[Choice, Path]) -> None:
    parsed, found = set(), []
    for path, content in distinct_files(bakes):
        text = content.decode()
        if path.suffix in PARSERS:
            PARSERS[path.suffix](text)
            parsed.add(path.suffix)
        found += [f"{path}: {fault}" for fault, pattern in FAULTS.items() if pattern.search(text)]
        # One is about the template, the other a template of MkDocs; any may name its template.
        may_have_some = path.name == RECORD or str(path).endswith(OF_MKDOCS)
        named = f"{path.name}\n{text}".replace("cookiecutter-lightning", "")
        if not may_have_some and RESIDUE.search(named):
            found.append(f"{path}: residue")
    assert {".toml", ".yaml", ".yml", ".py"} <= parsed
    assert not found, "\n".join(found)


def test_a_licence_is_in_its_file_and_in_the_metadata(bakes: dict[Choice, Path]) -> None:
    for choice, project in bakes.items():
        metadata = tomllib.loads((project / "pyproject.toml").read_text())["project"]
        text = (project / "LICENSE").read_text()
        assert re.search(r"Copyright (\(c\) )?20\d\d,? Your Name", text)
        assert text.lstrip().startswith(LICENSES[choice.license])
        private = choice.license == "Proprietary"
        assert metadata["license"] == ("LicenseRef-Proprietary" if private else choice.license)
        assert ("Private :: Do Not Upload" in metadata.get("classifiers", [])) == private


def test_each_ci_and_the_devcontainer_set_up_a_project_as_a_person_does(
    bakes: dict[Choice, Path],
) -> None:
    for choice, project in bakes.items():
        if choice.ci == "github":
            workflow = yaml.safe_load((project / ".github/workflows/test.yml").read_text())
            steps = workflow["jobs"]["test"]["steps"]
            (version,) = [step["with"]["python-version"] for step in steps if "with" in step]
            typed = [step["run"] for step in steps if "run" in step]
            assert (version, typed) == (choice.python, COMMANDS)
        if choice.ci == "gitlab":
            job = yaml.safe_load((project / ".gitlab-ci.yml").read_text())["test"]
            assert (job["image"], job["script"]) == (f"python:{choice.python}", COMMANDS)
        settings = json.loads((project / ".devcontainer/devcontainer.json").read_text())
        assert settings["image"].endswith(f"/python:{choice.python}")
        assert settings["postCreateCommand"] == "make setup"
        assert '"${containerWorkspaceFolder}/.venv/bin/python"' in json.dumps(settings)
    assert make(bakes[DEFAULT], "--dry-run", "setup").returncode == 0


def is_clean_to_ruff(folder: Path) -> str:
    """What `ruff format --check` says of a folder in which ruff has nothing to mend."""
    for command in (["check"], ["format", "--check"]):
        result = run("ruff", *command, "--no-cache", ".", cwd=folder)
        assert result.returncode == 0, result.stdout
    return result.stdout


def test_ruff_has_nothing_to_say(bakes: dict[Choice, Path]) -> None:
    # Ruff formats the code in Markdown files as well.
    names = [name for made in bakes.values() for name in files_of(made)]
    read = sum(name.endswith((".py", ".md")) for name in names)
    assert f"{read} files already formatted" in is_clean_to_ruff(bakes[DEFAULT].parents[1])


@pytest.mark.long  # half a minute of mypy
def test_make_lint_has_nothing_to_say(plain: Path) -> None:
    """Of one bake: no choice changes its code, and to ruff all are looked at above."""
    venv = f"VENV={Path(sys.executable).parents[1]}"
    result = make(plain, "lint", venv, MYPY_CACHE_DIR=str(MYPY_CACHE))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no issues found" in result.stdout


@needs_todays_types
@pytest.mark.long
def test_mypy_has_nothing_to_say_of_the_starters(tmp_path: Path) -> None:
    """All at once, as packages of other names: most of the time goes into what they import."""
    names = QUESTIONS["starter"][1:]
    projects = [
        bake(tmp_path / "out", starter=name, project_name=f"Begun with {name}") for name in names
    ]
    packages = [str(next((project / "src").iterdir())) for project in projects]
    assert len(set(packages)) == len(names) > 1
    # The settings of the one that needs more packages, which need not be installed for this.
    settings = projects[names.index("huggingface")]
    result = run("mypy", "--cache-dir", str(MYPY_CACHE), *packages, cwd=settings)
    assert result.returncode == 0, result.stdout


def test_a_project_of_the_defaults_is_small(plain: Path) -> None:
    files = files_of(plain)
    lines = {
        name: len((plain / name).read_text(encoding="utf-8").splitlines())
        for name in files
        if name.endswith(".py")
    }
    of_tests = sum(number for name, number in lines.items() if name.startswith("tests/"))
    assert len(files) <= 100
    assert of_tests <= 350
    assert sum(lines.values()) - of_tests <= 1300


@pytest.mark.parametrize("name", QUESTIONS["starter"][1:])
def test_each_starter_is_clean(tmp_path: Path, name: str) -> None:
    project = bake(tmp_path / "out", starter=name)
    assert files_of(project) == {*template_files(name), *BY_THE_HOOK} - UNASKED
    is_clean_to_ruff(project)
    for path in files_of(project) - {f"vendor/{archive_name()}", OF_MKDOCS}:
        text = (project / path).read_text(encoding="utf-8")
        assert not re.search(r"\{\{|\{%|\{#|starters/", text), path


@pytest.mark.parametrize("name", ["a", "zoo_of_models_for_a_very_long_name_0123"])
def test_other_package_names_are_clean_too(tmp_path: Path, name: str) -> None:
    project = bake(tmp_path / "out", package_name=name, project_slug=name.replace("_", "-"))
    assert (project / "src" / name / "__init__.py").is_file()
    is_clean_to_ruff(project)
    for file in files_of(project) - {f"vendor/{archive_name()}"}:
        assert "my_project" not in (project / file).read_text(encoding="utf-8"), file


def run(module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_in(cwd, sys.executable, "-m", module, *arguments)
