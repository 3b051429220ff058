"""Command lines that nobody means: none may lead to a traceback, or leave something behind."""

import os
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from fuzz.command import empty, run
from fuzz.judge import judge
from fuzz.lines import SHORT, draws

from onecurve.launch.forkserver import warm_up

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has threads")
# Others, and as many as one likes: FUZZ_LINES=1000 FUZZ_SEED=1 make test-library ARGS=-kfuzz
LINES, SEED = int(os.environ.get("FUZZ_LINES", 10)), int(os.environ.get("FUZZ_SEED", 0))


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    warm_up()


def test_no_command_line_gets_a_traceback_leaves_something_or_is_wrongly_accepted(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    for line in draws(ROOT / "configs", SEED, LINES):
        done = run(ROOT / "train.py", [*SHORT, *line.words], folder)
        assert judge(done, folder, line.wrong) == [], line.words
        empty(folder)


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    """The judge itself: a traceback, what is left, and a line that must not be accepted."""
    folder = tmp_path / "here"
    folder.mkdir()
    script = tmp_path / "wrong.py"
    script.write_text("open('left', 'w')\nraise KeyError('x')\n")
    done = run(script, [], folder)
    assert [kind for kind, _ in judge(done, folder, wrong=True)] == ["traceback", "leftover"]
    empty(folder)
    script.write_text("")
    done = run(script, [], folder)
    assert judge(done, folder, wrong=True) == [("wrong acceptance", "it cannot be right")]
    assert judge(done, folder, wrong=False) == [("wrong acceptance", "0 run directories")]
