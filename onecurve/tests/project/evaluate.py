"""Measure a checkpoint on the test set: ``python evaluate.py checkpoint=PATH``."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from onecurve.command.entry import command, run


@hydra.main(config_path="configs", config_name="evaluate", version_base="1.3")
def main(config: DictConfig) -> float | None:
    """One evaluation."""
    return run("onecurve.run.evaluate.work", config)


if __name__ == "__main__":
    command(main, Path(__file__).parent / "configs", "evaluate")
