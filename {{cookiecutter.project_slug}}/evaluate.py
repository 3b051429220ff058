"""Measure a checkpoint on the test set: ``python evaluate.py checkpoint=PATH``."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from {{ cookiecutter.package_name }}.engine.run.entry import command
from {{ cookiecutter.package_name }}.engine.run.job import run


@hydra.main(config_path="configs", config_name="evaluate", version_base="1.3")
def main(config: DictConfig) -> float | None:
    """One evaluation."""
    return run("evaluate", config)


if __name__ == "__main__":
    command(main, Path(__file__).parent / "configs", "evaluate")
