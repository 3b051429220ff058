"""Every two answers about licence, Python, logger, CI and cluster: each bake is born clean."""

import ast
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from baking import LIBRARY, PROJECT, TEMPLATE, bake, files_of, make, run_in, template_files
from packaging.version import Version

from template_checkout import archive_name


class Choice(NamedTuple):
    license: str
    python: str
    logger: str
    ci: str
    cluster: str


QUESTIONS = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
CHOICES = [Choice(*answers) for answers in itertools.product(*map(QUESTIONS.get, Choice._fields))]
DEFAULT = CHOICES[0]
# What mypy makes of torch, Lightning and Hydra is most of its time.
MYPY_CACHE = TEMPLATE / ".mypy_cache" / "bakes"
TESTED = (TEMPLATE / PROJECT / "constraints.txt").read_text(encoding="utf-8")
(TESTED_TORCH,) = re.findall(r"^torch==(\S+)", TESTED, re.MULTILINE)
needs_todays_types = pytest.mark.skipif(
    Version(version("torch")) < Version(TESTED_TORCH),
    reason="older packages have other types: mypy is for those of constraints.txt and later",
)


def pairs(choice: Choice) -> set[tuple[object, ...]]:
    """The answers of a choice, two and two."""
    return set(itertools.combinations(enumerate(choice), 2))


def covering() -> list[Choice]:
    """The default, each other answer alone, and more until every two answers have met."""
    chosen = [DEFAULT]
    for question in Choice._fields:
        chosen += [DEFAULT._replace(**{question: a}) for a in QUESTIONS[question][1:]]
    left = set().union(*map(pairs, CHOICES)).difference(*map(pairs, chosen))
    while left:
        chosen.append(max(CHOICES, key=lambda choice: len(pairs(choice) & left)))
        left -= pairs(chosen[-1])
    return chosen


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
ONLY_WITH_AT_THE_TOP = {".dockerignore", ".gitlab-ci.yml", "Dockerfile", "deploy"}
AT_THE_TOP = ONLY_WITH_AT_THE_TOP | {
    *(RECORD, ".devcontainer", ".editorconfig", ".env.example", ".github", ".gitignore"),
    *(".pre-commit-config.yaml", "LICENSE", "Makefile", "README.md", "configs", "constraints.txt"),
    *("docs", "evaluate.py", "predict.py", "pyproject.toml", "src", "tests", "train.py", "vendor"),
}


def bake_one(root: Path, choice: Choice) -> Path:
    return bake(root / "-".join(choice), **choice._asdict())


@pytest.fixture(scope="module")
def starters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A project of each starter but the default, which all other bakes have."""
    root = tmp_path_factory.mktemp("starters")
    return {name: bake(root / name, starter=name) for name in QUESTIONS["starter"][1:]}


@pytest.fixture(scope="module")
def bakes(tmp_path_factory: pytest.TempPathFactory) -> dict[Choice, Path]:
    root = tmp_path_factory.mktemp("bakes")
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        projects = pool.map(bake_one, itertools.repeat(root), covering())
        return dict(zip(covering(), projects, strict=True))


def distinct_files(bakes: dict[Choice, Path]) -> Iterator[tuple[Path, bytes]]:
    """Every file of every bake, but each name and content only once."""
    seen = set()
    for project in bakes.values():
        for name in sorted(files_of(project) - {f"vendor/{archive_name()}"}):
            content = (project / name).read_bytes()
            if (name, content) not in seen:
                seen.add((name, content))
                yield project / name, content


def test_every_two_answers_are_enough() -> None:
    """No file asks for more than two, so what these bakes hold is what all 432 would."""
    assert len(set(CHOICES)) == 4 * 4 * 3 * 3 * 3
    assert set().union(*map(pairs, covering())) == set().union(*map(pairs, CHOICES))
    asked = set()
    for name, path in template_files().items():
        text = path.read_text("utf-8")
        questions = {q for q in Choice._fields if f"cookiecutter.{q}" in text}
        questions |= {ONLY_WITH[name][0]} if name in ONLY_WITH else set()
        assert len(questions) <= 2, name
        asked |= questions
    assert asked == set(Choice._fields)


def test_each_bake_has_exactly_its_files(bakes: dict[Choice, Path]) -> None:
    everything = {*template_files(), *BY_THE_HOOK}
    assert {name.partition("/")[0] for name in everything} == AT_THE_TOP
    for choice, project in bakes.items():
        left_out = {n for n, (asked, with_) in ONLY_WITH.items() if getattr(choice, asked) != with_}
        assert files_of(project) == everything - left_out, choice
        assert (project / ".github").exists() == (choice.ci == "github"), choice
        assert (project / "deploy").exists() == (choice.cluster != "none"), choice


@pytest.mark.parametrize("question", Choice._fields)
def test_each_choice_changes_only_what_it_names(bakes: dict[Choice, Path], question: str) -> None:
    default = bakes[DEFAULT]
    for answer in QUESTIONS[question][1:]:
        other = bakes[DEFAULT._replace(**{question: answer})]
        common = files_of(default) & files_of(other)
        changed = {n for n in common if (default / n).read_bytes() != (other / n).read_bytes()}
        assert changed == CHANGES.get(answer, CHANGES[question]), answer


def test_everything_parses(bakes: dict[Choice, Path]) -> None:
    parsers: dict[str, Callable[[str], object]] = {
        ".toml": tomllib.loads,
        ".yaml": lambda text: list(yaml.safe_load_all(text)),
        ".yml": lambda text: list(yaml.safe_load_all(text)),
        ".json": json.loads,
        ".py": lambda text: ast.parse(text, feature_version=(3, 11)),
    }
    parsed = set()
    for path, content in distinct_files(bakes):
        if path.suffix in parsers:
            parsers[path.suffix](content.decode())
            parsed.add(path.suffix)
    assert {".toml", ".yaml", ".yml", ".py"} <= parsed


def test_the_package_is_copied_as_it_is(bakes: dict[Choice, Path]) -> None:
    """What is linted, typed and run in the template is the file itself."""
    copied = re.compile(r"src/my_project/.*\.py$")
    sources = {name: path for name, path in template_files().items() if copied.match(name)}
    assert len(sources) > 10
    for name, original in sources.items():
        assert (bakes[DEFAULT] / name).read_bytes() == original.read_bytes(), name


def test_whitespace_is_clean(bakes: dict[Choice, Path]) -> None:
    faults = {
        "carriage return": re.compile(r"\r"),
        "blank at the end of a line": re.compile(r"[ \t]$", re.MULTILINE),
        "no newline at the end": re.compile(r"[^\n]\Z"),
        "empty line at the end": re.compile(r"\n\n\Z"),
        "empty line at the start": re.compile(r"\A\n"),
        "more than two empty lines": re.compile(r"\n{4}"),
    }
    found = [
        f"{path}: {fault}"
        for path, content in distinct_files(bakes)
        for fault, pattern in faults.items()
        if pattern.search(content.decode())
    ]
    assert not found, "\n".join(found)


OF_MKDOCS = "docs/site/theme/main.html"


def test_no_residue_of_the_template(bakes: dict[Choice, Path]) -> None:
    residue = re.compile(r"\{\{|\{%|\{#|cookiecutter", re.IGNORECASE)
    found = []
    for path, content in distinct_files(bakes):
        # One is about the template, the other a template of MkDocs.
        if path.name == RECORD or str(path).endswith(OF_MKDOCS):
            continue
        # Any file may say which template it comes from.
        text = content.decode().replace("cookiecutter-lightning", "")
        name = path.name.replace("cookiecutter-lightning", "")
        if residue.search(f"{name}\n{text}"):
            found.append(str(path))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff_has_nothing_to_say(bakes: dict[Choice, Path], command: list[str]) -> None:
    root = bakes[DEFAULT].parents[1]
    result = run("ruff", *command, "--no-cache", str(root), cwd=root)
    assert result.returncode == 0, result.stdout
    # Ruff formats the code in Markdown files as well.
    names = [name for made in bakes.values() for name in files_of(made)]
    read = sum(name.endswith((".py", ".md")) for name in names)
    if command == ["format", "--check"]:
        assert f"{read} files already formatted" in result.stdout


@pytest.mark.long  # half a minute of mypy
def test_make_lint_has_nothing_to_say(bakes: dict[Choice, Path]) -> None:
    """Of one bake: to mypy all are the same, and to ruff they are looked at above."""
    seen = set()
    for project in bakes.values():
        settings = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["mypy"]
        digest = hashlib.sha256(json.dumps(settings).encode())
        for name in sorted(name for name in files_of(project) if re.match(r"src/.*\.py$", name)):
            digest.update(name.encode() + (project / name).read_bytes())
        seen.add(digest.hexdigest())
    assert len(seen) == 1
    venv = f"VENV={Path(sys.executable).parents[1]}"
    result = make(bakes[DEFAULT], "lint", venv, MYPY_CACHE_DIR=str(MYPY_CACHE))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no issues found" in result.stdout


@needs_todays_types
@pytest.mark.long  # and of make lint
def test_mypy_has_nothing_to_say_of_the_library() -> None:
    here = {**os.environ, "PYTHONPATH": "src"}
    cache = str(TEMPLATE / ".mypy_cache" / "library")
    result = run_in(LIBRARY, Path(sys.executable).with_name("mypy"), "--cache-dir", cache, env=here)
    assert result.returncode == 0, result.stdout + result.stderr


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


@pytest.mark.parametrize("name", QUESTIONS["starter"][1:])
def test_each_starter_is_clean(starters: dict[str, Path], name: str) -> None:
    project = starters[name]
    unasked = {n for n, (asked, with_) in ONLY_WITH.items() if getattr(DEFAULT, asked) != with_}
    assert files_of(project) == {*template_files(name), *BY_THE_HOOK} - unasked
    assert {n.partition("/")[0] for n in files_of(project)} == AT_THE_TOP - ONLY_WITH_AT_THE_TOP
    for command in (["ruff", "check"], ["ruff", "format", "--check"]):
        result = run(*command, "--no-cache", ".", cwd=project)
        assert result.returncode == 0, result.stdout
    own = files_of(project) - {f"vendor/{archive_name()}"}
    for path in own - {OF_MKDOCS}:
        text = (project / path).read_text(encoding="utf-8")
        assert not re.search(r"\{\{|\{%|\{#|starters/", text), path
    lines = {
        part: sum(
            len((project / path).read_text().splitlines())
            for path in own
            if path.endswith(".py") and path.startswith("tests/") == (part == "tests")
        )
        for part in ("tests", "code")
    }
    assert lines["code"] <= 1400
    assert lines["tests"] <= 800


@pytest.mark.parametrize("name", ["a", "zoo_of_models_for_a_very_long_name_0123"])
def test_other_package_names_are_clean_too(tmp_path: Path, name: str) -> None:
    project = bake(tmp_path / "out", package_name=name, project_slug=name.replace("_", "-"))
    assert (project / "src" / name / "__init__.py").is_file()
    for command in (["check"], ["format", "--check"]):
        result = run("ruff", *command, "--no-cache", ".", cwd=project)
        assert result.returncode == 0, result.stdout
    for file in files_of(project) - {f"vendor/{archive_name()}"}:
        assert "my_project" not in (project / file).read_text(encoding="utf-8"), file


def run(module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_in(cwd, sys.executable, "-m", module, *arguments)
