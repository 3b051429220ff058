"""`python -m onecurve.docs` finds the library's pages, and they name what is there."""

import ast
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from several_fits import Case, Small, fits_in_ranks
from torch import Tensor

import onecurve

ROOT = Path(__file__).parents[1]


def test_the_pages_are_listed_where_they_lie() -> None:
    command = [sys.executable, "-m", "onecurve.docs"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    folder = Path(shown.partition("   (")[0])
    listed = [line.split() for line in shown.splitlines()[2:]]
    assert {page.name for page in folder.glob("*.md")} == {name for name, *_ in listed}
    assert ["strategies.md", "Strategies"] in listed


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


class Traced(Small):
    """Counts the library's frames around its step."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        files = [frame.filename for frame in traceback.extract_stack()]
        library = str(Path(onecurve.__file__).parent)
        ours = [file for file in files if file.startswith(library)]
        self.log("frames", float(sum("/launch/" not in file for file in ours)))
        return super().training_step(batch, batch_idx)


def test_a_step_is_at_most_eight_frames_deep() -> None:
    strategies: dict[str, Any] = {"pipeline": onecurve.Pipeline(), "fsdp": onecurve.FSDP()}
    cases: dict[str, Case] = {
        name: (Traced, made, {"max_epochs": 1}) for name, made in strategies.items()
    }
    deepest = {name: max(logged["frames"]) for name, logged in fits_in_ranks(cases).items()}
    assert deepest == {"pipeline": 8, "fsdp": 8}
