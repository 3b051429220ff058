"""What people type: bad names get one clear line and leave nothing; free text arrives as typed."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from baking import PARSERS, TEMPLATE, bake, files_of, run_in
from cookiecutter.exceptions import FailedHookException

import template_checkout
from template_answers import check_answers

NO_NAME = [
    *("My Project", "my project", " project", "project ", "myProject", "1project", "_project"),
    *("-project", "project-", "project_", "my--project", "my__project", "a/b", "../up", "a\\b"),
    *(".", "..", ".hidden", "project.py", "~", "$HOME", "%s", "a\nb", "a\0b", "\x1b[31mred"),
    *("naïve", "项目", "🔥", "ﬁre", "a\u202eb", "'", '"', "$(reboot)", "`reboot`", "a;b", "*"),
    *("--help", "x" * 41, "x" * 5000),
]
TAKEN = [
    *("class", "none", "match", "async", "json", "os", "test", "distutils", "annotationlib"),
    *("torch", "pytorch_lightning", "hydra", "omegaconf", "torchmetrics", "sklearn", "pil"),
    *("tensorboard", "pytest", "yaml", "setuptools", "pillow", "src", "tests", "configs", "train"),
    *("runs", "build", "vendor", "onecurve", "con", "nul", "com1", "lpt9"),
]
TAKEN_SLUGS = [*TAKEN, "scikit-learn", "hydra-core", "pytorch-lightning"]
BAD_TEXT = [
    *("", " ", "two\nlines", "two\r\nlines", "a\ttab", "nul\0", "\x1b[31mred", "a\x7fb", "a\x85b"),
    *("a\u2028b", " leading", "trailing ", "half \ud83d", "x" * 1000),
]
GOOD_TEXT = [
    "It's \"quoted\", 'twice' and `once`",
    "\"\"\" and '''",
    "C:\\new\\table \\u0041 \\",
    "100 % of ${oc.env:HOME}, $HOME, %(name)s and %s",
    "key: value # no comment, - no item, [no, list], {no: map}, *no_alias, &no_anchor, !no_tag",
    "<b>no</b> & nothing else | > @ ` ~",
    "--no-option",
    "äöüß ñ 中文 עברית 👩‍🔬 trains 🔥",
    "}} %} #} closes nothing",
    "x" * 100,
]
BAD_EMAIL = [
    *("nobody", "a@b", "a@b.c d", "a@@b.c", "@b.c", "a@", "a b@c.d", "a@b..c", ".a@b.c"),
    *('"a"@b.c', "a@b.c>", "ä@b.c", "a@" + "b" * 260 + ".c"),
]
DEFAULTS = {
    **dict.fromkeys(("project_name", "description", "author"), "Fine"),
    "email": "you@example.com",
    "project_slug": "fine",
    "package_name": "fine",
}


def refused(**answers: str) -> str:
    """The line about answers that must be refused; what it suggests must be accepted."""
    with pytest.raises(FailedHookException) as raised:
        check_answers(DEFAULTS | answers)
    line = str(raised.value)
    assert line.isprintable()
    assert len(line) < 600
    return line


def metadata_of(project: Path) -> dict[str, Any]:
    text = (project / "pyproject.toml").read_text(encoding="utf-8")
    metadata: dict[str, Any] = tomllib.loads(text)["project"]
    return metadata


def suggested(line: str) -> str:
    found = re.search(r", try '(.*)'\.$", line)
    assert found, line
    return found[1]


@pytest.mark.parametrize(
    ("variable", "names", "signs"),
    [
        ("project_slug", [*NO_NAME, *TAKEN_SLUGS], "digits, dashes and underscores"),
        ("package_name", [*NO_NAME, *TAKEN, "my-project"], "digits and underscores"),
    ],
)
def test_bad_names(variable: str, names: list[str], signs: str) -> None:
    for name in names:
        line = refused(**{variable: name})
        assert line.startswith(f"{variable}: ")
        assert f"allowed are small letters, {signs}" in line
        assert check_answers({**DEFAULTS, variable: suggested(line)}) == "yes"


@pytest.mark.parametrize("variable", ["project_name", "description", "author"])
def test_bad_text(variable: str) -> None:
    for text in BAD_TEXT:
        line = refused(**{variable: text})
        assert line.startswith(f"{variable}: ")
        assert "allowed is one line of 1 to" in line


def test_bad_email() -> None:
    for email in BAD_EMAIL:
        assert refused(email=email).startswith("email: ")


@pytest.mark.parametrize(
    "text",
    [
        text if number % 6 == 1 else pytest.param(text, marks=pytest.mark.long)
        for number, text in enumerate(GOOD_TEXT)
    ],
)
def test_free_text_arrives_as_it_was_typed(tmp_path: Path, plain: Path, text: str) -> None:
    answers = {"project_name": text, "description": text, "author": text}
    email = "o'neil+ml@mail.example.co.uk"
    project = bake(tmp_path / "out", project_slug="my-project", email=email, **answers)
    metadata = metadata_of(project)
    assert metadata["description"] == text
    assert metadata["authors"] == [{"name": text, "email": email}]
    assert text in (project / "LICENSE").read_text(encoding="utf-8")
    # What differs from a bake that tests/test_bakes.py parses.
    for name in files_of(project):
        if name.endswith(tuple(PARSERS)) and not name.startswith("vendor/"):
            content = (project / name).read_text(encoding="utf-8")
            if content != (plain / name).read_text(encoding="utf-8"):
                PARSERS[Path(name).suffix](content)


def test_a_name_without_letters_still_has_a_slug(tmp_path: Path) -> None:
    assert bake(tmp_path / "out", project_name="🔥").name == "my-project"


# The command itself: what the user sees.


def command(*arguments: str, typed: str = "", cwd: Path) -> subprocess.CompletedProcess[str]:
    cwd.mkdir(exist_ok=True)
    settings = cwd.parent / "settings.yaml"
    settings.write_text(json.dumps({"replay_dir": str(cwd.parent / "replay")}))
    template = (TEMPLATE, "--config-file", settings)
    return run_in(cwd, sys.executable, "-m", "cookiecutter", *template, *arguments, typed=typed)


def prompts(*answers: str) -> str:
    """What is typed at the twelve prompts, of which the last are left as suggested."""
    return "".join(f"{answer}\n" for answer in (*answers, *[""] * (12 - len(answers))))


@pytest.mark.parametrize(
    "answer",
    ["project_slug=a/b", "project_slug=../up", "package_name=torch", "description=two\nlines"],
    ids=ascii,
)
def test_the_command_refuses_with_one_line(tmp_path: Path, answer: str) -> None:
    result = command("--no-input", answer, cwd=tmp_path / "here")
    assert result.returncode == 1
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    assert result.stdout.startswith(f"{answer.partition('=')[0]}: ")
    assert list((tmp_path / "here").iterdir()) == []
    assert not (tmp_path / "up").exists()


def test_after_a_refusal_the_other_answers_need_not_be_typed_again(tmp_path: Path) -> None:
    """Cookiecutter takes typed text as it is, where it renders the text of `--no-input`."""
    name, description, author = "It's", 'Two  words, ${x} %s \\ "both" 👩‍🔬', 'Zoë "Z" O\'Neil'
    answers = (name, "Bad_Slug", "", description, author, "nobody", "2", "4", "6", "3", "3", "2")
    result = command(typed=prompts(*answers), cwd=tmp_path / "here")
    assert result.returncode == 1
    said, shown = result.stdout.split("\n\nTo keep the other answers, type:\n\n")
    assert said.endswith("email: 'nobody' is not an e-mail address; try 'you@example.com'.")
    assert "project_slug=bad-slug package_name=bad_slug" in shown
    words = shlex.split(shown.removeprefix("  ").removeprefix("uvx "))
    assert words[:2] == ["cookiecutter", str(TEMPLATE)]
    again = command(*words[4:], cwd=tmp_path / "here")
    mended = ("bad-slug", "", description, author, "", *answers[6:])
    typed = command(typed=prompts("Ärger & Co", *mended), cwd=tmp_path / "there")
    for result, folder in ((again, "here"), (typed, "there")):
        assert result.returncode == 0, result.stdout + result.stderr
        project = tmp_path / folder / "bad-slug"
        metadata = metadata_of(project)
        assert metadata["description"] == description
        assert metadata["authors"][0]["name"] == author
        assert metadata["license"] == "BSD-3-Clause"
        assert metadata["requires-python"] == ">=3.14"
        assert (project / "deploy/train.sbatch").is_file()
        assert not (project / ".github").exists()


@pytest.mark.parametrize("text", ["{{ cookiecutter }}", "{{", "{% raw %}", "{# no #}"])
def test_a_template_as_an_answer_is_refused_and_leaves_nothing(tmp_path: Path, text: str) -> None:
    """Cookiecutter renders what follows --no-input by itself, and fails by itself."""
    typed = command(typed=prompts("Fine", "", "", text), cwd=tmp_path / "here")
    assert typed.returncode == 1
    assert "template's opening braces" in typed.stdout
    if text in ("{{", "{% raw %}"):
        assert command("--no-input", f"description={text}", cwd=tmp_path / "here").returncode == 1
    assert list((tmp_path / "here").iterdir()) == []


def test_no_secret_of_an_address_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it is noted as typed: tests/test_checkout.py."""
    monkeypatch.setattr(
        template_checkout, "git", lambda *words: "21a90cb" if words[0] == "rev-parse" else ""
    )
    state = template_checkout.cruft_state("https://me:secret@example.com/t.git", {"ci": "none"})
    about = {"_template": "https://example.com/t.git", "_commit": "21a90cb"}
    assert state
    assert state["template"] == about["_template"]
    assert state["context"] == {"cookiecutter": {"ci": "none", **about}}
