"""`python -m onecurve.docs` finds the library's pages."""

import subprocess
import sys
from pathlib import Path


def test_the_pages_are_listed_where_they_lie() -> None:
    command = [sys.executable, "-m", "onecurve.docs"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    folder = Path(shown.partition("   (")[0])
    listed = [line.split() for line in shown.splitlines()[2:]]
    assert {page.name for page in folder.glob("*.md")} == {name for name, *_ in listed}
    assert ["strategies.md", "Strategies"] in listed
