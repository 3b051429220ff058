"""What the answers may be, and what a project records of them: filters of template_extension.py.

A `pre_gen_project` hook would check too late: it runs in the project's folder, already made under
whatever name was given (`a/b`, `../up`), and its refusal shows a traceback. Only the standard
library is used here, besides what Cookiecutter itself brings.
"""

import json
import keyword
import os
import re
import shlex
import sys
import unicodedata
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from cookiecutter.exceptions import FailedHookException

TEMPLATE = Path(__file__).resolve().parent
MAX_NAME = 40
MAX_TEXT = {"project_name": 100, "description": 300, "author": 200, "email": 254}
SLUG = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
PACKAGE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
EMAIL = re.compile(r"[\w!#$%&'*+/=?^`|~-]+(\.[\w!#$%&'*+/=?^`|~-]+)*@[\w-]+(\.[\w-]+)+", re.ASCII)
PROJECT = TEMPLATE / "{{cookiecutter.project_slug}}"

# Modules of the standard library of a Python between 3.11 and 3.14 other than the one that runs.
OTHER_STDLIB = """
aifc annotationlib asynchat asyncore audioop cgi cgitb chunk compression crypt distutils imghdr
imp lib2to3 mailcap msilib nis nntplib ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib test uu
xdrlib
"""
# What the dependencies are imported as, where that is not the name they are installed by.
IMPORT_NAMES = """
absl antlr4 attr box cfnlint coreweave_evaluations cuda cv2 databricks dateutil dotenv functorch git
google graphql griffe grpc hydra hydra_plugins importlinter isympy jsonpatch_cli lightning_fabric
markdown_it material materialx mkdocstrings_handlers mlflow mpl_toolkits mypyc nvidia onecurve
opentelemetry pil pkg_resources py pydevd_plugins pylab pymdownx rpds sklearn torchaudio torchgen
validate xdist yaml yaml_env_tag
"""
# Of devices: no folder on Windows can be called so, with or without an ending.
WINDOWS_NAMES = {
    *("aux", "con", "nul", "prn"),
    *(f"{port}{number}" for port in ("com", "lpt") for number in range(10)),
}
# Folders and modules that a project gets later, and the tools around it.
PROJECT_NAMES = """
benchmarks build checkpoints conftest cookiecutter data dist doc docs hatchling logs multirun
notebooks outputs pip report runs scripts setup site test uv vendor venv wheel
"""


class BadAnswer(Exception):
    """An answer that cannot be used, and what would work instead."""

    def __init__(self, line: str, variable: str, instead: str) -> None:
        super().__init__(line)
        self.variable, self.instead = variable, instead


def quoted(text: str) -> str:
    """A string literal that TOML, YAML, JSON and Python all read back as `text`."""
    return json.dumps(text, ensure_ascii=False)


def for_hook(answers: Mapping[str, object]) -> str:
    """What the hook has to know: JSON, written so that any string literal holds it."""
    chosen = {name: value for name, value in answers.items() if not name.startswith("_")}
    typed = answers.get("_template", "")
    by_cruft = "_output_dir" not in answers  # Cookiecutter's own command says where it bakes
    known = {"template": str(TEMPLATE), "typed": typed, "answers": chosen, "by_cruft": by_cruft}
    return urllib.parse.quote(json.dumps(known))


def check_answers(answers: Mapping[str, str]) -> str:
    """Check every answer that somebody types.

    Raises:
        FailedHookException: one line with the variable, its value, what is allowed and what would
            work; Cookiecutter prints it and exits with 1.
    """
    mended, refusals = dict(answers), list[BadAnswer]()
    while refusal := first_refusal(mended):  # a package's name follows the project's, for example
        refusals.append(refusal)
        mended[refusal.variable] = refusal.instead
    if refusals:
        raise FailedHookException(f"{refusals[0]}{how_to_keep(mended)}")
    return "yes"


def first_refusal(answers: Mapping[str, str]) -> BadAnswer | None:
    """What is said of the first answer that cannot be used; None if all can be."""
    try:
        for variable in MAX_TEXT:
            check_text(variable, answers[variable])
        if not EMAIL.fullmatch(answers["email"]):
            refuse("email", answers["email"], "is not an e-mail address", "", "you@example.com")
        check_name("project_slug", answers["project_slug"], SLUG, "-")
        check_name("package_name", answers["package_name"], PACKAGE, "_")
    except BadAnswer as refusal:
        return refusal
    return None


def how_to_keep(answers: Mapping[str, str]) -> str:
    """The command to type instead of all answers again, where they were typed."""
    program = Path(sys.argv[0])  # `python -m cookiecutter` has its __main__.py
    if "cookiecutter" not in (program.stem, program.parent.name) or "--no-input" in sys.argv:
        return ""
    chosen = [f"{name}={value}" for name, value in answers.items() if not name.startswith("_")]
    typed = [*(["uvx"] if "UV" in os.environ else []), "cookiecutter", *sys.argv[1:]]
    command = shlex.join([*typed, "--no-input", *chosen])
    return f"\n\nTo keep the other answers, type:\n\n  {command}"


def check_text(variable: str, text: str) -> None:
    """Free text: one printable line, which no later rendering would take for a template."""
    allowed = f"allowed is one line of 1 to {MAX_TEXT[variable]} characters"
    tried = " ".join("".join(c if is_printable(c) else " " for c in str(text)).split())
    tried = re.sub(r"\{(?=[{%#])", "{ ", tried)[: MAX_TEXT[variable]].strip()
    advice = (f"{allowed}, ", tried or "My Project")
    if not isinstance(text, str) or not text.strip():
        refuse(variable, text, "is empty", *advice)
    if not all(map(is_printable, text)):
        refuse(variable, text, "has a line break or a control character in it", *advice)
    if text != text.strip():
        refuse(variable, text, "starts or ends with a blank", *advice)
    if len(text) > MAX_TEXT[variable]:
        refuse(variable, text, f"has {len(text)} characters", *advice)
    if re.search(r"\{[{%#]", text):
        refuse(variable, text, "has a template's opening braces in it", *advice)


def check_name(variable: str, name: str, pattern: re.Pattern[str], separator: str) -> None:
    """A name of a folder or package, which must not hide anything that the project imports."""
    joined = {"-": "digits, dashes and underscores", "_": "digits and underscores"}[separator]
    allowed = f"allowed are small letters, {joined}, a letter first, at most {MAX_NAME} characters"
    advice = (f"{allowed}, ", similar_name(name, pattern, separator))
    if not isinstance(name, str) or not pattern.fullmatch(name):
        refuse(variable, name, "is not a name that can be used", *advice)
    if len(name) > MAX_NAME:
        refuse(variable, name, f"has {len(name)} characters", *advice)
    if taken := taken_by(name):
        refuse(variable, name, taken, *advice)


def taken_by(name: str) -> str | None:
    """What a name already stands for, or None."""
    name = name.replace("-", "_").lower()
    stdlib = {module.lower() for module in sys.stdlib_module_names}
    # `type` is a soft keyword from Python 3.12 on.
    keywords = {word.lower() for word in [*keyword.kwlist, *keyword.softkwlist, "type"]}
    reserved = {
        "is a Python keyword": keywords,
        "is a module of Python's standard library": stdlib.union(OTHER_STDLIB.split()),
        "is the name of a dependency": dependencies().union(IMPORT_NAMES.split()),
        "is a name that Windows keeps for itself": WINDOWS_NAMES,
        "is a folder or module of the project": project_names().union(PROJECT_NAMES.split()),
    }
    return next((reason for reason, names in reserved.items() if name in names), None)


def dependencies() -> set[str]:
    """The names in the generated project's constraints, as they would be imported."""
    lines = (PROJECT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.partition("==")[0] for line in lines if "==" in line]
    return {name.replace("-", "_").replace(".", "_").lower() for name in pins}


def project_names() -> set[str]:
    """The folders and modules at the top of the generated project."""
    return {path.stem.lower() for path in PROJECT.iterdir()}


def similar_name(name: str, pattern: re.Pattern[str], separator: str) -> str:
    """The nearest name that is allowed."""
    text = unicodedata.normalize("NFKD", str(name)).encode("ascii", "ignore").decode().lower()
    words = re.findall(r"[a-z0-9]+", text)
    near = separator.join(words).lstrip(f"0123456789{separator}")
    near = near[:MAX_NAME].rstrip(separator)
    if near and taken_by(near):
        near = f"{near[: MAX_NAME - 8]}{separator}project"
    return near if pattern.fullmatch(near) else f"my{separator}project"


def is_printable(character: str) -> bool:
    """Whether a character stays on its line and can be written as UTF-8; emoji joiners may stay."""
    return unicodedata.category(character) not in {"Cc", "Cs", "Zl", "Zp"}


def shown(text: object) -> str:
    """A value on one line, shortened."""
    line = repr(text)
    return line if len(line) <= 80 else f"{line[:60]}...{line[-1]}"


def refuse(variable: str, value: object, fault: str, allowed: str, instead: str) -> NoReturn:
    """Raise the one line."""
    line = f"{variable}: {shown(value)} {fault}; {allowed}try {shown(instead)}."
    raise BadAnswer(line, variable, instead)
