"""Every file of `configs/` composes; new files are found automatically."""

import pytest
import yaml
from conftest import CONFIGS, composed

FILES = [path.relative_to(CONFIGS).with_suffix("") for path in sorted(CONFIGS.rglob("*/*.yaml"))]
DEFAULTS = yaml.safe_load((CONFIGS / "train.yaml").read_text())["defaults"]
# Groups in the defaults of train.yaml; others need a plus.
CHOSEN = {group for entry in DEFAULTS if isinstance(entry, dict) for group in entry}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_choice_composes(file: object) -> None:
    group, _, choice = str(file).rpartition("/")
    config = composed(f"{'' if group in CHOSEN else '+'}{group}={choice}")
    assert {"task", "data", "model", "trainer"} <= set(config)
