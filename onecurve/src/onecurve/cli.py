"""What scripts of older projects call: each says what takes its place.

The run is in the project's own train.py, evaluate.py and predict.py now, and the other scripts are
commands of the console script ``onecurve``.
"""

from pathlib import Path

from .errors import UserError, stop


def train(script: str) -> None:
    """Say that the script itself has the run now."""
    name = Path(script).name
    stop(
        UserError(
            f"{name}: scripts have their run in sight now; `make update` brings "
            f"the new {name}, or take the 20 lines of `onecurve docs using`"
        )
    )


evaluate = predict = train


def parity(script: str = "report.py") -> None:
    """Say which command took the script's place; `report` was called without its file."""
    name = Path(script).stem
    stop(UserError(f"{name}.py: is `onecurve {name}`; delete the file"))


plan = export = report = parity
