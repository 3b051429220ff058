"""Hand a trained network on: ``python export.py checkpoint=PATH format=onnx``."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from onecurve.command.entry import command, run


@hydra.main(config_path="configs", config_name="export", version_base="1.3")
def main(config: DictConfig) -> float | None:
    """One export."""
    return run("onecurve.run.export.work", config)


if __name__ == "__main__":
    command(main, Path(__file__).parent / "configs", "export")
