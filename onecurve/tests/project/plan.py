"""Which mesh to take: ``python plan.py trainer.devices=64 plan.gpu=h100``."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from onecurve.command.entry import command, run


@hydra.main(config_path="configs", config_name="plan", version_base="1.3")
def main(config: DictConfig) -> float | None:
    """One plan."""
    return run("onecurve.planner.work.work", config)


if __name__ == "__main__":
    command(main, Path(__file__).parent / "configs", "plan")
