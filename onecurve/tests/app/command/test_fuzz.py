"""A sample of what the benchmarks `fuzz_commands` and `fuzz_checkpoints` try by the thousand."""

import sys
from pathlib import Path

import pytest
from conftest import ROOT, Cli
from fuzz.command import empty, run
from fuzz.files import Files
from fuzz.judge import judge
from fuzz.lines import SHORT, draws
from fuzz.try_files import try_file

from onecurve.launch.forkserver import warm_up

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has threads")
LINES = 10
FILES = 12


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    warm_up()


def test_no_command_line_gets_a_traceback_leaves_something_or_is_wrongly_accepted(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    for line in draws(ROOT / "configs", seed=0, number=LINES):
        done = run(ROOT / "train.py", [*SHORT, *line.words], folder)
        assert judge(done, folder, line.wrong) == [], line.words
        empty(folder)


@pytest.mark.long
def test_no_file_gets_a_traceback_leaves_something_or_is_taken_for_another(
    tmp_path: Path, cli: Cli
) -> None:
    made = cli("train.py", *SHORT)
    files = Files((made.run / "checkpoints/last.ckpt").read_bytes(), seed=0)
    folder = tmp_path / "here"
    (folder / "images").mkdir(parents=True)
    for number in range(FILES):
        assert list(try_file(files, ROOT, folder, number)) == []


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
