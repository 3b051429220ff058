"""Report on sweeps: ``python report.py SWEEP_DIR...``."""

import argparse
import sys
from pathlib import Path

try:
    from onecurve.errors import UserError, stop
    from onecurve.sweep.report.write import write
except ModuleNotFoundError as error:
    print(
        f"error: {error.name} is not installed in this Python; type `make setup`, then "
        "`source .venv/bin/activate` (or `uv run`)",
        file=sys.stderr,
    )
    sys.exit(2)


def main() -> None:
    """Print the table of all jobs, and write sweep.csv and sweep.html."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directories", nargs="*", type=Path, metavar="SWEEP_DIR")
    parser.add_argument(
        "--to", type=Path, help="where the files go (default: SWEEP_DIR; of several, here)"
    )
    arguments = parser.parse_args()
    directories: list[Path] = arguments.directories
    try:
        if not directories:
            raise UserError("no SWEEP_DIR was given; python report.py runs/DATE/TIME-sweep")
        here = directories[0] if len(directories) == 1 else Path()
        write(directories, arguments.to or here)
    except UserError as error:
        stop(error)


if __name__ == "__main__":
    main()
