"""What the project's pages list is what the template ships: choices, commands, the contract."""

import json
import re
from pathlib import Path

import pytest
import yaml
from baking import LIBRARY, PROJECT, TEMPLATE

from template_checkout import from_images

SOURCE = TEMPLATE / PROJECT
GUIDE = (SOURCE / "docs/project.md").read_text(encoding="utf-8")
CALLBACKS = (LIBRARY / "docs/callbacks.md").read_text(encoding="utf-8")
STARTERS = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))["starter"]
SOURCES = LIBRARY / "src/onecurve"


def first_cells(page: str) -> list[str]:
    return [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]


def rows_of(page: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))


def listed(cells: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", cells)))


def test_the_guide_lists_every_choice() -> None:
    """Of the groups that people edit, and of those that the library brings."""
    rows = rows_of(GUIDE)
    ours = {path.name for path in (SOURCE / "configs").iterdir() if path.is_dir()}
    assert rows.keys() == ours | {"logger", "sweep", "debug"}
    for group, cells in rows.items():
        files = [*(SOURCE / "configs" / group).glob("*.yaml")]
        files += (SOURCES / "configs" / group).glob("*.yaml")
        assert {file.stem for file in files} == listed(cells), group


@pytest.mark.parametrize("starter", STARTERS)
def test_a_starter_lists_every_choice(starter: str) -> None:
    folder = SOURCE / "starters" / starter
    groups: dict[str, set[str]] = {}
    shared = [Path(name) for name in from_images("my_project", starter)]
    for file in [*(folder / "configs").glob("*/*.yaml"), *shared]:
        if file.suffix == ".yaml":
            groups.setdefault(file.parent.name, set()).add(file.stem)
    rows = rows_of((folder / "README.md").read_text(encoding="utf-8"))
    assert {group: listed(cells) for group, cells in rows.items()} == groups


STRATEGIES = ("single", "dp", "ddp", "fsdp", "pipeline", "tensor")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_page_of_a_strategy_has_its_keys_and_defaults(strategy: str) -> None:
    file = SOURCE / f"configs/strategy/{strategy}.yaml"
    keys = yaml.safe_load(file.read_text(encoding="utf-8"))
    for name in ("name", "processes", "_target_"):
        del keys[name]
    page = (LIBRARY / f"docs/{strategy}.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| `strategy\.(\w+)` \| `([^`]+)` \|", page, re.MULTILINE))
    assert {key: yaml.safe_load(value) for key, value in shown.items()} == keys


def test_every_callback_is_described_and_what_one_may_ask_for_is_there() -> None:
    callbacks, _, own = CALLBACKS.partition("## A callback of your own")
    named = {name for cell in first_cells(callbacks) for name in re.findall(r"`(\w+)`", cell)}
    folders = (SOURCE / "configs/callbacks", SOURCES / "configs/callbacks")
    assert {path.stem for folder in folders for path in folder.glob("*.yaml")} - {"none"} <= named
    methods = {name for cell in first_cells(own) for name in re.findall(r"`(\w+)\(", cell)}
    assert len(methods) >= 9
    source = (SOURCES / "strategies/callback_api.py").read_text(encoding="utf-8")
    # Two are Lightning's own, which every strategy has.
    defined = {*re.findall(r"def (\w+)", source), "reduce", "lightning_module_state_dict"}
    assert methods <= defined


def test_pages_of_the_library_that_are_named_are_installed_with_it() -> None:
    """No site has them: an address would lead nowhere."""
    files = [*SOURCE.rglob("*.md"), *(TEMPLATE / "docs").glob("*.md"), LIBRARY / "README.md"]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    named = set(re.findall(r"onecurve docs (\w+)", text))
    assert {"strategies", "callbacks", "sweeps", "your_module"} <= named
    assert named <= {page.stem for page in (LIBRARY / "docs").glob("*.md")}
    assert "org.github.io" not in text
