"""What makes `python train.py` of a configuration: composition, launch, record, sweeps.

A project's scripts import two names from here; see `onecurve.app.command.main`.
"""

from .command.main import main
from .run.run import Run

__all__ = ["Run", "main"]
