"""The pages of this library: ``python -m onecurve.docs`` prints where they are."""

import argparse
import webbrowser
from pathlib import Path

SITE = "https://org.github.io/cookiecutter-lightning/"


def folder() -> Path:
    """The folder of the pages: in the installed package, or beside the sources in a checkout."""
    installed = Path(__file__).parent / "pages"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "docs"


def main() -> None:
    """Print the folder and the title of each page; with --open, open it in the browser."""
    parser = argparse.ArgumentParser(prog="python -m onecurve.docs", description=main.__doc__)
    parser.add_argument("--open", action="store_true", help="open the folder in the browser")
    arguments = parser.parse_args()
    print(f"{folder()}   (as a site: {SITE})\n")
    for page in sorted(folder().glob("*.md")):
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        print(f"  {page.name:22} {title}")
    if arguments.open:
        webbrowser.open(folder().as_uri())


if __name__ == "__main__":
    main()
