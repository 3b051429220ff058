"""Hand a trained network on: ``python export.py checkpoint=PATH format=onnx``."""

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


@hydra.main(config_path="configs", config_name="export", version_base="1.3")
def main(config: DictConfig) -> float | None:
    """One export."""
    return run("onecurve.run.export.work", config)


if __name__ == "__main__":
    command(main, Path(__file__).parent / "configs", "export")
