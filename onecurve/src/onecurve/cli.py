"""The commands of a project: each of its scripts, such as train.py, calls one of these functions.

    from onecurve import cli

    if __name__ == "__main__":
        cli.train(__file__)

The script's name is that of its configuration in ``configs/`` beside it. Every rank imports the
script again, so this module only imports the standard library.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig


def train(script: str) -> None:
    """Train: one run, or with ``-m`` a sweep."""
    _run(script, "onecurve.app.run.fit.work")


def evaluate(script: str) -> None:
    """Evaluate a checkpoint on the test set."""
    _run(script, "onecurve.app.run.fit.evaluate")


def predict(script: str) -> None:
    """Predict with a checkpoint."""
    _run(script, "onecurve.app.run.predict.work")


def export(script: str) -> None:
    """Export the network of a checkpoint: torch.export, ONNX."""
    _run(script, "onecurve.app.run.export.work")


def parity(script: str) -> None:
    """Compare a strategy with a plain Trainer; the exit status is 1 if they differ."""
    _run(script, "onecurve.app.parity.work")


def plan(script: str) -> None:
    """Estimate which mesh to use."""
    _run(script, "onecurve.app.plan.work")


def report() -> None:
    """Print the table of all jobs of sweeps, and write sweep.csv and sweep.html."""
    from .app.sweep.report import main

    main()


def _run(script: str, work: str) -> None:
    import hydra

    from .app.command.entry import command, run

    name, configs = Path(script).stem, Path(script).resolve().parent / "configs"

    def main(config: "DictConfig") -> float | None:
        return run(work, config)

    main.__module__ = name  # Hydra names the job after it
    decorate = hydra.main(config_path=str(configs), config_name=name, version_base="1.3")
    command(decorate(main), configs, name)
