"""What DDP sends, and by which backend."""

import importlib

import pytest
import torch
import yaml
from conftest import FLOAT64, ROOT, Cli, column, largest_difference


@pytest.mark.compares
def test_gradients_may_be_sent_in_16_bits(train: Cli) -> None:
    """Half of the traffic, and no longer exact: the curve differs, but little.

    Under SGD: it keeps a small error of a gradient small, and AdamW does not.
    """
    same = ("strategy=ddp", "optimizer=sgd", "trainer.max_epochs=4", FLOAT64)
    whole = column(train(*same).run, "train/loss")
    short = column(train(*same, "strategy.communication_dtype=bf16").run, "train/loss")
    assert 1e-6 < largest_difference(whole, short) < 0.01


WITH_BACKEND = [
    file.stem
    for file in sorted((ROOT / "configs/strategy").glob("*.yaml"))
    if "backend:" in file.read_text()
]


@pytest.mark.parametrize("name", WITH_BACKEND)
def test_the_process_group_has_the_backend_that_was_asked_for(name: str) -> None:
    """By default it depends on the device. Nothing is started here, because that needs a GPU."""
    config = yaml.safe_load((ROOT / f"configs/strategy/{name}.yaml").read_text())
    module, _, attribute = config["_target_"].rpartition(".")
    make = getattr(importlib.import_module(module), attribute)
    for device, backend in (("cpu", "gloo"), ("cuda", "nccl")):
        for asked, expected in (("auto", backend), ("gloo", "gloo")):
            strategy = make(backend=asked)
            strategy.parallel_devices = [torch.device(device, 0)]
            assert strategy._get_process_group_backend() == expected
