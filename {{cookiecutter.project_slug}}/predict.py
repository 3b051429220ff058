"""Classify images: ``python predict.py checkpoint=PATH predict.images=FOLDER``."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from {{ cookiecutter.package_name }}.engine.run.entry import command
from {{ cookiecutter.package_name }}.engine.run.job import run


@hydra.main(config_path="configs", config_name="predict", version_base="1.3")
def main(config: DictConfig) -> float | None:
    """One prediction run."""
    return run("predict", config)


if __name__ == "__main__":
    command(main, Path(__file__).parent / "configs", "predict")
