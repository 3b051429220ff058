"""Train a model: ``python train.py strategy=ddp optimizer.lr=0.01``. See ``--help`` for more."""

import sys
from pathlib import Path

try:
    import hydra
    from omegaconf import DictConfig
    from onecurve.command.entry import command, run
except ModuleNotFoundError as error:
    print(
        f"error: {error.name} is not installed in this Python; type `make setup`, then "
        "`source .venv/bin/activate` (or `uv run`)",
        file=sys.stderr,
    )
    sys.exit(2)


@hydra.main(config_path="configs", config_name="train", version_base="1.3")
def main(config: DictConfig) -> float | None:
    """One run, or one job of a sweep; returns the last value of ``monitor``."""
    return run("onecurve.run.fit.work", config)


if __name__ == "__main__":
    command(main, Path(__file__).parent / "configs", "train")
