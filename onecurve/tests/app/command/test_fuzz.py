"""Command lines that nobody means: none may lead to a traceback, or leave something behind."""

import json
import math
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, TINY, column
from fuzz.lines import draws
from processes import Command, end

from onecurve.app.run.interpolation import dotted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has threads")
# Others, and as many as one likes: FUZZ_LINES=1000 FUZZ_SEED=1 make test-library ARGS=-kfuzz
LINES, SEED = int(os.environ.get("FUZZ_LINES", 10)), int(os.environ.get("FUZZ_SEED", 0))
# A run of one step, whatever is drawn after it.
SHORT = (*TINY, "trainer.accelerator=cpu", "trainer.max_epochs=1", "trainer.max_steps=1")
SHORT += ("trainer.limit_val_batches=1", "trainer.limit_test_batches=1")
# A number that is too large must not take this machine's memory.
BYTES_AT_MOST = 16 << 30


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path / "here"


def faults(folder: Path, script: Path, *typed: str, wrong: bool) -> list[str]:
    """What is wrong with what a command has done in an empty folder; it must be rejected if so."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command = Command(folder, str(script), *typed)
    resource.prlimit(command.pid, resource.RLIMIT_AS, (BYTES_AT_MOST, BYTES_AT_MOST))
    try:
        _, err = command.communicate(60)
    except subprocess.TimeoutExpired:
        return ["it did not end"]
    finally:
        end(command)
    status, lines = command.returncode, [line for line in err.splitlines() if line.strip()]
    found = []
    if "Traceback (most recent call last)" in err or status not in (0, 1, 2):
        found.append(f"traceback: status {status}: {''.join(lines[-1:])}")
    elif status and len(lines) != 1:
        found.append(f"{len(lines)} lines of refusal: {' / '.join(lines)[:300]}")
    if status == 0:
        return [*found, *(["wrong acceptance"] if wrong else not_right(folder))]
    # What had begun to train keeps its directory, with the record of how it ended.
    if list(folder.iterdir()) and not list(folder.rglob("metrics.csv")):
        found.append("leftover")
    return found


def not_right(folder: Path) -> list[str]:
    """What an accepted run shows not to have been right."""
    runs = [path.parent for path in folder.rglob("metrics.json")]
    if len(runs) != 1:
        return [f"{len(runs)} run directories"]
    config = yaml.safe_load((runs[0] / "config.yaml").read_text())
    facts = json.loads((runs[0] / "metrics.json").read_text())
    expected = {"status": "finished", "strategy": config["strategy"]["name"]}
    found = [f"{key}={facts.get(key)}" for key in expected if facts.get(key) != expected[key]]
    losses = column(runs[0], "train/loss") if (runs[0] / "metrics.csv").exists() else []
    # One that a person has added means something to that person alone.
    known = [(key, value) for key, value in dotted(config) if not key.startswith("new")]
    nans = [key for key, value in known if isinstance(value, float) and math.isnan(value)]
    return [*found, *(f"loss={value}" for value in losses if not math.isfinite(value)), *nans]


def test_no_command_line_gets_a_traceback_leaves_something_or_is_wrongly_accepted(
    folder: Path,
) -> None:
    for words, wrong in draws(ROOT / "configs", SHORT, SEED, LINES):
        assert faults(folder, ROOT / "train.py", *SHORT, *words, wrong=wrong) == [], words


def test_what_is_wrong_is_found(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("open('left', 'w')\nraise KeyError('x')\n")
    assert faults(folder, script, wrong=True) == ["traceback: status 1: KeyError: 'x'", "leftover"]
    script.write_text("")
    assert faults(folder, script, wrong=True) == ["wrong acceptance"]
    assert faults(folder, script, wrong=False) == ["0 run directories"]
