"""Before a bake over a project: copy what lies where the bake writes, for the hook after it."""

import json
import shutil
import sys
import urllib.parse
from pathlib import Path

KNOWN = json.loads(urllib.parse.unquote("{{ cookiecutter | for_hook }}"))
sys.path.insert(0, KNOWN["template"])
sys.dont_write_bytecode = True
import template_checkout as checkout  # noqa: E402


def main() -> None:
    """Run in the project's folder, as Cookiecutter does."""
    if not any(Path().iterdir()):
        return
    shutil.rmtree(checkout.ASIDE, ignore_errors=True)  # of a bake that failed
    answers = KNOWN["answers"]
    for name in checkout.places(answers["package_name"], answers["starter"]):
        if Path(name).is_file():
            copy = checkout.ASIDE / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, copy)
    # Whether Cookiecutter leaves this as it is shows if it was told to skip files that exist.
    mark = checkout.readme_of(answers["starter"])
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text("")


main()
