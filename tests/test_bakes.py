"""Every licence, Python, logger and CI together: 144 bakes, each clean as it is born."""

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
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from baking import PACKAGE, PROJECT, TEMPLATE, bake, files_of, template_files


class Choice(NamedTuple):
    license: str
    python: str
    logger: str
    ci: str


QUESTIONS = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
CHOICES = [Choice(*answers) for answers in itertools.product(*map(QUESTIONS.get, Choice._fields))]
DEFAULT = CHOICES[0]

# Files that only one answer brings.
ONLY_WITH = {".github/workflows/test.yml": "github", ".gitlab-ci.yml": "gitlab"}
# What each choice may change, and has to.
CHANGES = {
    "license": {"LICENSE", "pyproject.toml"},
    "python": {".github/workflows/test.yml", "Makefile", "pyproject.toml"},
    "logger": {"configs/train.yaml"},
    "ci": set(),
}
AT_THE_TOP = {
    *(".editorconfig", ".github", ".gitignore", ".gitlab-ci.yml", ".pre-commit-config.yaml"),
    *("LICENSE", "Makefile", "README.md", "configs", "constraints.txt", "evaluate.py"),
    *("docs", "predict.py", "pyproject.toml", "report.py", "src", "tests", "train.py"),
}


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
        for name in sorted(files_of(project)):
            content = (project / name).read_bytes()
            if (name, content) not in seen:
                seen.add((name, content))
                yield project / name, content


def test_there_are_144_choices() -> None:
    assert len(set(CHOICES)) == 4 * 4 * 3 * 3


def test_each_bake_has_exactly_its_files(bakes: dict[Choice, Path]) -> None:
    everything = template_files()
    assert {name.partition("/")[0] for name in everything} == AT_THE_TOP
    for choice, project in bakes.items():
        left_out = {name for name, ci in ONLY_WITH.items() if ci != choice.ci}
        assert files_of(project) == everything - left_out, choice
        assert (project / ".github").exists() == (choice.ci == "github"), choice


@pytest.mark.parametrize("question", Choice._fields)
def test_each_choice_changes_only_what_it_names(bakes: dict[Choice, Path], question: str) -> None:
    default = bakes[DEFAULT]
    for answer in QUESTIONS[question][1:]:
        other = bakes[DEFAULT._replace(**{question: answer})]
        common = files_of(default) & files_of(other)
        changed = {n for n in common if (default / n).read_bytes() != (other / n).read_bytes()}
        assert changed == CHANGES[question], answer


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
    sources = [name for name in template_files() if re.match(r"src/my_project/.*\.py$", name)]
    assert sources
    for name in sources:
        original = TEMPLATE / PROJECT / name.replace("my_project", PACKAGE)
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


def test_no_residue_of_the_template(bakes: dict[Choice, Path]) -> None:
    residue = re.compile(r"\{\{|\{%|\{#|cookiecutter", re.IGNORECASE)
    found = []
    for path, content in distinct_files(bakes):
        text = content.decode()
        if path.name == "README.md":  # may say which template the project comes from
            text = text.replace("cookiecutter-lightning", "")
        if residue.search(f"{path.name}\n{text}"):
            found.append(str(path))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff_has_nothing_to_say(bakes: dict[Choice, Path], command: list[str]) -> None:
    root = bakes[DEFAULT].parents[1]
    result = run("ruff", *command, "--no-cache", str(root), cwd=root)
    assert result.returncode == 0, result.stdout
    # Ruff formats the code in Markdown files as well.
    read = sum(name.endswith((".py", ".md")) for name in files_of(bakes[DEFAULT]))
    if command == ["format", "--check"]:
        assert f"{read * len(bakes)} files already formatted" in result.stdout


def test_mypy_has_nothing_to_say(bakes: dict[Choice, Path]) -> None:
    """Once for each distinct set of sources and settings."""
    distinct = {}
    for project in bakes.values():
        settings = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["mypy"]
        digest = hashlib.sha256(json.dumps(settings).encode())
        for name in sorted(name for name in files_of(project) if name.endswith(".py")):
            digest.update(name.encode() + (project / name).read_bytes())
        distinct[digest.digest()] = project
    for project in distinct.values():
        result = run("mypy", "--cache-dir", str(TEMPLATE / ".mypy_cache" / "bakes"), cwd=project)
        assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", ["a", "z" * 40, "zoo_of_models_for_a_very_long_name_0123"])
def test_other_package_names_are_clean_too(tmp_path: Path, name: str) -> None:
    project = bake(tmp_path / "out", package_name=name, project_slug=name.replace("_", "-"))
    assert (project / "src" / name / "__init__.py").is_file()
    for command in (["check"], ["format", "--check"]):
        result = run("ruff", *command, "--no-cache", ".", cwd=project)
        assert result.returncode == 0, result.stdout
    for path in project.rglob("*.py"):
        assert "my_project" not in path.read_text(encoding="utf-8"), path


def run(module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
