"""Each house of the library has a budget of lines, which `make lint` holds: `.ci/budgets.py`."""

from pathlib import Path
from runpy import run_path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci/budgets.py"


@pytest.fixture
def budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the script beside a library of three houses: core 3 lines, app 2, planner 1."""
    library = tmp_path / "onecurve/src/onecurve"
    for name, lines in {"core": 3, "app/command": 2, "planner/mesh": 1}.items():
        file = library / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n" * lines)
    for folder in ("onecurve/tests", "tests", "benchmarks"):
        (tmp_path / folder).mkdir(parents=True)
    script = tmp_path / ".ci/budgets.py"
    script.parent.mkdir()
    script.write_text(SCRIPT.read_text(encoding="utf-8"))
    return script


@pytest.mark.parametrize(
    ("core", "longest", "line"),
    [
        (3, 3, ""),
        (2, 3, "error: core: 3 lines, and its budget is 2\n"),
        (3, 2, "error: library: 3 longest, and its budget is 2\n"),
    ],
)
def test_a_house_over_its_budget_is_named(
    budgets: Path, capsys: pytest.CaptureFixture[str], core: int, longest: int, line: str
) -> None:
    (budgets.parents[1] / "onecurve/pyproject.toml").write_text(
        f"[tool.budgets]\nlibrary = {{ lines = 6, longest = {longest} }}\n"
        f"core = {{ lines = {core}, aim = 1 }}\napp = {{ lines = 2 }}\nplanner = {{ lines = 1 }}\n"
    )
    assert run_path(str(budgets))["main"]() == bool(line)
    shown = capsys.readouterr()
    assert shown.err == line
    assert f"core                 3 lines of {core}, aim 1; 1 files\n" in shown.out
