"""What scripts of older projects call: a line says what takes its place."""

from pathlib import Path

from .errors import UserError, stop


def train(script: str = "report.py") -> None:
    """Say that a script has the run itself now, or is a command of the console script."""
    name = Path(script).stem
    if name in ("train", "evaluate", "predict"):
        there = f"scripts have their run in sight now; `make update` brings the new {name}.py"
        stop(UserError(f"{name}.py: {there}, or take the 20 lines of `onecurve docs using`"))
    stop(UserError(f"{name}.py: is `onecurve {name}`; delete the file"))  # report gives no name


evaluate = predict = parity = plan = export = report = train
