"""Evaluate a checkpoint on the test set: ``python evaluate.py checkpoint=PATH``."""

import sys

try:
    from onecurve import cli
except ModuleNotFoundError as error:
    print(
        f"error: {error.name} is not installed in this Python; type `make setup`, then "
        "`source .venv/bin/activate` (or `uv run`)",
        file=sys.stderr,
    )
    sys.exit(2)

if __name__ == "__main__":
    cli.evaluate(__file__)
