"""For what the template checks in a bake, of which this is the folder `checks`: see checked.py."""

import json
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from onecurve.app.command.resolvers import register_resolvers

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
# A starter's own small_data.py, or else that of the images.
sys.path.insert(0, str(ROOT / "tests"))
pytest_plugins = ["onecurve.testing.fixtures", "small_data"]

STARTER = json.loads((ROOT / ".cruft.json").read_text())["context"]["cookiecutter"]["starter"]
TWO_STEPS = (
    "trainer.max_epochs=1",
    "trainer.accumulate_grad_batches=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
    "data.batch_size=8",  # enough for two pipelines with four micro-batches, as in the pages
)


def composed(*overrides: str) -> DictConfig:
    """The configuration that `python train.py` composes from a command line."""
    register_resolvers()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", overrides=list(overrides))
