"""What the tests of this project share: its configuration, and runs of two steps."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from onecurve.app.command.resolvers import register_resolvers

# Fixtures that run the scripts in an empty folder, cli("train.py", ...) and once(...); and those of
# a starter that needs files.
pytest_plugins = ["onecurve.testing.fixtures"]
if Path(__file__).with_name("small_data.py").exists():
    pytest_plugins += ["small_data"]

CONFIGS = Path(__file__).parents[1] / "configs"
TWO_STEPS = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
    "data.batch_size=8",
)


def composed(*overrides: str) -> DictConfig:
    """The configuration that `python train.py` composes from a command line."""
    register_resolvers()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", overrides=list(overrides))
