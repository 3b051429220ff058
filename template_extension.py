"""The Jinja extension that Cookiecutter loads before it renders anything.

What it offers is read from the checkout each time, not imported: `cruft update` renders two commits
of the template in one process, where an import would still be that of the first.
"""

import runpy
from pathlib import Path

from jinja2 import Environment
from jinja2.ext import Extension

TEMPLATE = Path(__file__).resolve().parent


class TemplateExtension(Extension):
    """The filters and functions of the two files beside this one."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        answers = runpy.run_path(str(TEMPLATE / "template_answers.py"))
        checkout = runpy.run_path(str(TEMPLATE / "template_checkout.py"))
        for name in ("check_answers", "quoted", "for_hook"):
            environment.filters[name] = answers[name]
        for name in ("library_version", "archive_name"):
            environment.globals[name] = checkout[name]
