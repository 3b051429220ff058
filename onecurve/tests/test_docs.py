"""`onecurve docs` finds the library's pages, and they name what is there."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def docs(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onecurve.docs", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_pages_are_listed_where_they_lie_and_shown_by_name() -> None:
    folder, _, _, *listed = docs().stdout.splitlines()
    assert {page.stem for page in Path(folder).glob("*.md")} == {line.split()[0] for line in listed}
    assert "Strategies" in [line.split(maxsplit=1)[1] for line in listed]
    assert docs("recipes").stdout.strip() == (ROOT / "docs/recipes.md").read_text("utf-8").strip()
    unknown = docs("recipe")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("error: recipe: no such page; one of ")
    assert unknown.stderr.count("\n") == 1


def test_what_the_drawings_name_is_there() -> None:
    page = (ROOT / "docs/how_it_works.md").read_text(encoding="utf-8")
    drawn = "".join(re.findall(r"```text.*?```", page, re.DOTALL))
    named = re.findall(r"(\w+/[\w/]+\.py) +([A-Za-z_.]+)", drawn)
    assert len(named) > 30
    for file, name in named:
        body: list[ast.stmt] = ast.parse((ROOT / "src/onecurve" / file).read_text("utf-8")).body
        for part in name.split("."):
            (found,) = [node for node in body if getattr(node, "name", None) == part]
            body = getattr(found, "body", [])


def test_the_files_of_ten_changes_are_there() -> None:
    page = (ROOT.parent / "CONTRIBUTING.md").read_text("utf-8")
    section = page.partition("### Ten changes")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| a")]
    assert len(rows) == 10
    for row in rows:
        files = re.findall(r"`([^`]+\.\w+)`", row.split(" | ")[1])
        assert [file for file in files if not (ROOT.parent / file).is_file()] == []
