"""For what the template checks in a bake, of which this is the folder `checks`: see checked.py."""

import json
import sys
from pathlib import Path

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
