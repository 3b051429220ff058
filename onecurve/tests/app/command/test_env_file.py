"""`.env` in the project: read before Hydra composes, weaker than the shell, never shown."""

import os
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, Cli, Refused

from onecurve.app.command.environment import read_env_file
from onecurve.errors import UserError


def test_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {
        "A_1=plain": ("A_1", "plain"),
        "export A_2 = 'with # and \"' # why": ("A_2", 'with # and "'),
        'A_3="it\'s"': ("A_3", "it's"),
        "A_4=two words # and why": ("A_4", "two words"),
        "A_5=": ("A_5", ""),
        'A_6=a=b$A_1#c"d': ("A_6", 'a=b$A_1#c"d'),
        "  # A_7=no": ("A_7", None),
    }
    monkeypatch.setattr(os, "environ", {"A_1": "of the shell"})
    (tmp_path / ".env").write_text("\ufeff" + "\r\n".join(lines) + "\n\n", encoding="utf-8")
    read_env_file(tmp_path)
    expected = {name: value for name, value in lines.values() if value is not None}
    assert os.environ == expected | {"A_1": "of the shell"}


def test_a_line_that_is_none(tmp_path: Path) -> None:
    for line in ("sk-secret", "2X=secret", "X='secret", "X='a' secret"):
        (tmp_path / ".env").write_text(f"A=1\n{line}\n")
        with pytest.raises(UserError, match=r"\.env, line 2: must be NAME=VALUE") as refused:
            read_env_file(tmp_path)
        assert "secret" not in str(refused.value)
    (tmp_path / ".env").write_bytes(b"A=\xff\n")
    with pytest.raises(UserError, match="cannot be read: it is not UTF-8; correct that, or remove"):
        read_env_file(tmp_path)


def test_a_command_has_them_wherever_one_stands(
    cli: Cli, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = shutil.copytree(ROOT, tmp_path / "project")
    (project / ".env").write_text("SOME_KEY=from_file\n")
    command = (str(project / "train.py"), "--cfg", "job", "--resolve", "project=${oc.env:SOME_KEY}")
    monkeypatch.setenv("SOME_KEY", "of_shell")
    assert "project: of_shell" in cli(*command).out.splitlines()
    monkeypatch.delenv("SOME_KEY")
    assert "project: from_file" in cli(*command).out.splitlines()
    (project / ".env").write_text("no secret\n")
    assert refused(*command).startswith("error: ")
