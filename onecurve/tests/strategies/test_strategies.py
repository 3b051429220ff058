"""What DDP sends, and by which backend."""

import importlib
from typing import Any

import pytest
import torch
import yaml
from conftest import ROOT, largest_difference
from several_fits import Case, Small, fits_in_ranks

import onecurve


@pytest.mark.compares
def test_gradients_may_be_sent_in_16_bits() -> None:
    """Half of the traffic, and no longer exact: the curve differs, but little.

    Under SGD: it keeps a small error of a gradient small, and AdamW does not.
    """
    cases: dict[Any, Case] = {
        dtype: (Small, onecurve.DDP(communication_dtype=dtype), {}) for dtype in (None, "bf16")
    }
    curves = [logged["train/loss"] for logged in fits_in_ranks(cases).values()]
    assert 1e-6 < largest_difference(*curves) < 0.01


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
