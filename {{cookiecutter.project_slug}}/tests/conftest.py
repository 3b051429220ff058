"""Fixtures of this project's tests; its scripts run in this process, in an empty folder."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from onecurve.app.command.resolvers import register_resolvers

pytest_plugins = ["onecurve.testing.fixtures", "small_data"]

CONFIGS = Path(__file__).parents[1] / "configs"
STRATEGIES = {
    "single": ("strategy=single",),
    "dp": ("strategy=dp", "trainer.devices=2"),
    "ddp": ("strategy=ddp",),
    "fsdp": ("strategy=fsdp",),
    "pipeline": ("strategy=pipeline",),
    "tensor": ("strategy=tensor",),
}
TWO_STEPS = (
    "trainer.max_epochs=1",
    "trainer.accumulate_grad_batches=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
    "data.batch_size=8",  # enough for two pipelines with four micro-batches, as in the pages
)


def shipped(*files: str) -> pytest.MarkDecorator:
    """Skip a test whose files, which come with the template, you have deleted or renamed."""
    gone = [file for file in files if not (CONFIGS / f"{file}.yaml").exists()]
    return pytest.mark.skipif(bool(gone), reason=f"not in configs/ any more: {', '.join(gone)}")


def choices(group: str) -> list[str]:
    """All files of a group of `configs/`."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def composed(*overrides: str) -> DictConfig:
    """The configuration that `python train.py` composes from a command line."""
    register_resolvers()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", overrides=list(overrides))
