"""What the README shows: its pictures are there, and whole."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from baking import PROJECT, TEMPLATE

PICTURES = [
    *(TEMPLATE / "docs/pictures").glob("*.svg"),
    *(TEMPLATE / PROJECT / "docs/pictures").glob("*.svg"),
]


def test_the_readmes_pictures_are_there() -> None:
    readme = (TEMPLATE / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", readme)
    assert len(shown) >= 2
    assert readme.index(shown[0]) < readme.index("\n## ")
    assert [name for name in shown if not (TEMPLATE / name).is_file()] == []


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_whole_and_fetches_nothing(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "viewBox" in root.attrib
    assert "prefers-" in text  # dark pages, or whoever wants no motion
    assert re.findall(r'(?:href="|url\()(?!#)[^")]*', text) == []
