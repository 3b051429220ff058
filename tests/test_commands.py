"""The commands that a project comes with: its Makefile, CI files, constraints, pre-commit hooks."""

import itertools
import os
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from baking import LIBRARY, PROJECT, TEMPLATE, bake, make, run_in
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def test_before_setup_every_command_says_what_to_type(tmp_path: Path) -> None:
    project = bake(tmp_path / "out", package_name="never_installed")
    bare = [sys.executable, "-S"]  # a Python with nothing but its standard library
    library = os.environ | {"PYTHONPATH": str(LIBRARY / "src")}
    typed = "type `make setup`, then `source .venv/bin/activate`"
    scripts = sorted(project.glob("*.py"))
    assert len(scripts) == 3
    for script in scripts:
        alone = run_in(tmp_path, *bare, script)
        beside = run_in(tmp_path, sys.executable, script, "optimizer.lr=fast", env=library)
        assert "is not installed in this Python" in alone.stderr
        assert "never_installed (the package in" in beside.stderr
        for done in (alone, beside):
            assert done.returncode in (1, 2)
            assert done.stderr.count("\n") == 1, done.stderr
            assert typed in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out-cookiecutter", "out"]


def test_make_alone_lists_every_command(plain: Path) -> None:
    for folder in (plain, TEMPLATE):
        phony = re.search(r"^\.PHONY: (.*)$", (folder / "Makefile").read_text(), re.MULTILINE)
        assert phony
        listed = re.findall(r"^  make ([\w-]+) +\S", make(folder).stdout, re.MULTILINE)
        assert sorted(listed) == sorted(phony[1].split())
    # What a newcomer needs comes first: of the template, which is the last of them.
    assert sorted(listed[:4]) == ["demo", "docs", "help", "test"]


def test_a_starter_that_is_none_gets_one_line() -> None:
    result = make(TEMPLATE, "demo", "STARTER=images2")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "STARTER=images2: must be one of images segmentation text hugging" in result.stderr


def test_the_constraints_fit_the_floors_and_name_no_address(plain: Path) -> None:
    text = (plain / "constraints.txt").read_text()
    assert not re.search(r"://|--hash|--index|--find-links|@", text)
    for python in PYTHONS:
        pins = pinned(text, python)
        checked = set()
        for folder in (plain, LIBRARY):
            metadata = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
            optional = metadata["optional-dependencies"].values()
            floors = {}
            for floor in map(Requirement, [*metadata["dependencies"], *itertools.chain(*optional)]):
                if floor.name not in (metadata["name"], "onecurve"):  # these themselves
                    assert floor.specifier.contains(pins[canonicalize_name(floor.name)]), floor
                    floors[floor.name] = floor.specifier
            checked |= set(floors)
            # The malicious releases of Lightning are left out.
            assert list(floors["lightning"].filter(["2.6.2", "2.6.3"])) == []
            assert floors["lightning"].contains("2.6.1")
        assert {"lightning", "torch", "optuna", "hydra-core", "pytest"} <= checked


def pinned(constraints: str, python: str) -> dict[str, str]:
    """The versions that are tested under a Python, by package."""
    machine = {"python_version": python, "python_full_version": f"{python}.0"}
    pins: dict[str, str] = {}
    for line in constraints.splitlines():
        if line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate(machine):
            assert canonicalize_name(pin.name) not in pins
            (specifier,) = pin.specifier
            assert specifier.operator == "=="
            pins[canonicalize_name(pin.name)] = specifier.version
    return pins


def test_the_librarys_readme_names_its_floors_and_extras() -> None:
    metadata = tomllib.loads((LIBRARY / "pyproject.toml").read_text())["project"]
    floors = {
        floor.name: next(part.version for part in floor.specifier if part.operator == ">=")
        for floor in map(Requirement, metadata["dependencies"])
    }
    install = (LIBRARY / "README.md").read_text().partition("## Install")[2].partition("\n## ")[0]
    python = metadata["requires-python"].removeprefix(">=")
    versions = f"Python {python}, PyTorch {floors['torch']} and Lightning {floors['lightning']}"
    assert f"{versions} or later" in install
    extras = set(metadata["optional-dependencies"]) - {"dev", "s3-test"}
    assert extras == {name for name in extras if f"`{name}`" in install}


@pytest.fixture(params=["project", "template"])
def with_makefile(request: pytest.FixtureRequest, plain: Path, tmp_path: Path) -> tuple[Path, str]:
    """A folder whose Makefile makes .venv, by a uv that installs nothing, and the target."""
    if request.param == "project":
        return shutil.copytree(plain, tmp_path / "out"), "setup"
    needed = ["Makefile", "pyproject.toml"]
    needed += [f"{PROJECT}/{n}" for n in ("pyproject.toml", "constraints.txt")]
    for name in [*needed, "onecurve/pyproject.toml"]:
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TEMPLATE / name, tmp_path / "copy" / name)
    return tmp_path / "copy", ".venv/installed"


def write_programs(folder: Path, **programs: str) -> str:
    """Programs of the shell that come first in the PATH that is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, does in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    return os.pathsep.join([str(folder), os.environ["PATH"]])


def test_a_python_that_is_not_there_gets_one_line(with_makefile: tuple[Path, str]) -> None:
    folder, target = with_makefile
    done = make(folder, target, "PYTHON=python9.9")
    assert done.returncode == 2
    first, *others = done.stderr.splitlines()
    assert first.startswith("error: PYTHON=python9.9: no such Python, or older than 3.11; ")
    assert first.endswith("PYTHON=python3.12, or its path")
    assert all(line.startswith("make: ***") for line in others)
    assert not (folder / ".venv").exists()


def test_setup_makes_again_what_another_python_left(with_makefile: tuple[Path, str]) -> None:
    folder, target = with_makefile
    programs = folder.parent / "programs"
    # This Python, but for pip, which takes seconds to be put into a .venv.
    without_pip = (
        'test "$1 $2" = "-m venv" && set -- "$@" --without-pip\n'
        f'exec {shlex.quote(sys.executable)} "$@"'
    )
    path = write_programs(programs, uv="exit 3", other="echo other; exit 0", python=without_pip)

    def made_again(left_by: str, *arguments: str) -> bool:
        shutil.rmtree(folder / ".venv", ignore_errors=True)
        (folder / ".venv/bin").mkdir(parents=True)
        (folder / ".venv/bin/python").symlink_to(programs / left_by)
        for name in ("pyvenv.cfg", "installed"):
            (folder / ".venv" / name).touch()
        done = make(folder, target, *arguments, PATH=path)
        is_told = "Making .venv again, for " in done.stdout
        assert is_told != (folder / ".venv/installed").exists(), done.stderr
        return is_told

    assert not made_again("other")
    for left_by in ("other", "is gone"):
        assert made_again(left_by, f"PYTHON={programs}/python")
        assert (folder / ".venv/bin/python").resolve() == Path(sys.executable).resolve()


@pytest.mark.parametrize(
    ("is_reached", "asked", "taken"),
    [(True, "", "auto"), (False, "", "the ordinary ones"), (False, "cu130", "cu130")],
)
def test_cuda_comes_only_where_a_gpu_is_as_far_as_the_network_lets_it(
    with_makefile: tuple[Path, str], is_reached: bool, asked: str, taken: str
) -> None:
    folder, target = with_makefile
    reached = 'grep -q "^torch$" && test "$UV_HTTP_RETRIES" = 0'
    compiled = f"*'pip compile'*'--torch-backend auto'*) {reached if is_reached else 'false'} ;;"
    installed = '*torch*|*editable*) echo "wheels: ${UV_TORCH_BACKEND:-the ordinary ones}" ;;'
    uv = f'case "$*" in {compiled} {installed} esac'
    path = write_programs(folder / ".venv/bin", uv=uv, cookiecutter="mkdir -p build/my-project")
    (folder / ".venv/bin/python").symlink_to(sys.executable)
    (folder / ".venv/pyvenv.cfg").touch()
    done = make(folder, target, PATH=path, UV_TORCH_BACKEND=asked)
    assert f"wheels: {taken}\n" in done.stdout, done.stdout + done.stderr
    assert ("cannot be reached" in done.stdout) == (not is_reached and not asked)
