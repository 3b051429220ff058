"""The pages of this library: ``onecurve docs`` lists them, and shows one by its name."""

import argparse
import pydoc
import sys
from pathlib import Path


def folder() -> Path:
    """The folder of the pages: in the installed package, or beside the sources in a checkout."""
    installed = Path(__file__).parent / "pages"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "docs"


def main() -> int:
    """List the pages that are installed with the library, or show one of them."""
    parser = argparse.ArgumentParser(prog="onecurve docs", description=main.__doc__)
    parser.add_argument("page", nargs="?", help="show this page, such as strategies")
    arguments = parser.parse_args()
    pages = {page.stem: page.read_text(encoding="utf-8") for page in sorted(folder().glob("*.md"))}
    if arguments.page is None:
        print(f"{folder()}\nShow one: onecurve docs {next(iter(pages))}\n")
        for name, text in pages.items():
            title = text.partition("\n")[0].removeprefix("# ")
            print(f"  {name:20} {title}")
    elif shown := pages.get(arguments.page.removesuffix(".md")):
        pydoc.pager(shown)
    else:
        print(f"error: {arguments.page}: no such page; one of {', '.join(pages)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
