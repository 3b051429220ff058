"""Every command of the README runs as it stands there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from baking import TEMPLATE

README = (TEMPLATE / "README.md").read_text(encoding="utf-8")
TRY, TRY_MORE, BAKE, USE = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MAKELEVEL"}}


def bash(script: str, cwd: Path) -> str:
    command = ["bash", "-euc", script]
    done = subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_two_commands() -> None:
    """`make test` is how this test was started; `make demo` is run below."""
    assert re.findall(r"^make \w+", TRY, re.MULTILINE) == ["make demo", "make test"]


@pytest.mark.slow
@pytest.mark.parametrize("line", ["make demo", TRY_MORE.strip()])
def test_demo(line: str) -> None:
    shown = bash(line, TEMPLATE)
    assert "Training finished" in shown
    assert float(re.search(r"test/acc\W+([\d.]+)", shown)[1]) > 0.97  # type: ignore[index]
    assert "is in build/my-project" in shown


@pytest.mark.slow
def test_a_first_hour(tmp_path: Path) -> None:
    """Bake, set up, train: only the address and the number of epochs differ from the README."""
    assert BAKE.strip() == "uvx cookiecutter gh:org/cookiecutter-lightning"
    cookiecutter = Path(sys.executable).with_name("cookiecutter")
    first = f"'{cookiecutter}' '{TEMPLATE}' --no-input --default-config"
    commands = re.sub(r"^(python train.py[^#\n]*)", r"\1 trainer.max_epochs=1 ", USE, flags=re.M)
    assert commands.count("trainer.max_epochs=1") == 4
    try:
        shown = bash(f"{first}\n{commands}", tmp_path)
    finally:
        shutil.rmtree(tmp_path / "my-project" / ".venv", ignore_errors=True)  # gigabytes
    assert shown.count("Training finished") == 1 + 1 + 1
    assert len(re.findall(r"^job \d+ of 10: finished", shown, re.M)) == 10
    runs = list((tmp_path / "my-project" / "runs").rglob("metrics.csv"))
    assert len(runs) == 1 + 1 + 1 + 10
