"""What the README shows: its pictures are there, whole, and made by scripts that work."""

import re
import subprocess
import sys
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


def test_a_terminal_is_recorded(tmp_path: Path) -> None:
    """Colours, a line that is written over, and a status that is passed on."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "here").touch()
    commands = [r"printf 'one\rtwo \033[31mred\033[0m <&>\n'", "ls; sleep 2"]
    script = [sys.executable, str(TEMPLATE / "docs/record.py"), str(tmp_path / "a.svg")]
    subprocess.run([*script, str(folder), *commands], check=True)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    lines = [
        "".join(line.itertext()) for line in ElementTree.fromstring(text).iter() if line.get("id")
    ]
    assert "$ ls; sleep 2" in lines
    assert {"twored<&>", "here"} <= {x.replace(" ", "") for x in lines}
    assert not any(line.startswith("one") for line in lines)
    assert 'fill="#e8707a" font-weight="400">red<' in text
    played = re.search(r"play ([\d.]+)s", text)
    assert played
    assert 5 < float(played[1]) <= 20
    assert subprocess.run([*script, str(folder), "exit 3"], check=False).returncode == 3
