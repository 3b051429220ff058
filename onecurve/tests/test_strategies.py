"""Edge cases: rounding, batches smaller than the number of ranks, sweeps. See test_parity.py."""

import importlib
import json

import pytest
import torch
import yaml
from conftest import FLOAT64, ROOT, ROUNDING, Cli, column, largest_difference, one_of_a_kind

# 1,297 training samples: 25 batches of 50 and one of 47, which two and three ranks share unevenly.
FIFTY_STEPS = ("data.batch_size=50", "trainer.max_epochs=2")


@pytest.mark.compares
def test_the_difference_is_rounding(train: Cli) -> None:
    """Also if three ranks have 17, 17 and 16 samples of a batch."""
    double = (*FIFTY_STEPS, FLOAT64)
    single = train(*double)
    ddp = train(*double, "strategy=ddp", "trainer.devices=3")
    difference = largest_difference(column(single.run, "train/loss"), column(ddp.run, "train/loss"))
    assert difference <= ROUNDING


@pytest.mark.compares
def test_a_batch_smaller_than_the_ranks_counts_by_sample(train: Cli) -> None:
    """40 = 13 x 3 + 1: in the last step one rank has a sample and the other has none."""
    few = ("data.batch_size=3", "trainer.max_epochs=1", FLOAT64)
    few += ("data.samples=217", "trainer.limit_val_batches=2", "trainer.limit_test_batches=2")
    single = train(*few)
    ddp = train(*few, "strategy=ddp")
    assert len(column(single.run, "train/loss")) == 14
    difference = largest_difference(column(single.run, "train/loss"), column(ddp.run, "train/loss"))
    assert difference <= ROUNDING


@pytest.mark.long
@pytest.mark.compares
def test_every_job_of_a_sweep_has_its_own_world(cli: Cli) -> None:
    """Three jobs make three directories, each with the right world size."""
    outcome = cli(
        "train.py", "-m", "model=mlp", "data.image_size=8", "logger=csv",
        "callbacks=[]", "trainer.max_epochs=1", "strategy=ddp", "trainer.devices=1,2,3",
        FLOAT64,
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    assert [path.name[:2] for path in outcome.runs] == ["01", "02", "03"]
    facts = [json.loads((run / "metrics.json").read_text()) for run in outcome.runs]
    assert [fact["world_size"] for fact in facts] == [1, 2, 3]
    curves = [column(run, "train/loss") for run in outcome.runs]
    assert largest_difference(curves[0], curves[1]) <= ROUNDING
    assert largest_difference(curves[0], curves[2]) <= ROUNDING


@pytest.mark.compares
@pytest.mark.parametrize("dtype", one_of_a_kind(["bf16", "fp16"], kept=["bf16"]))
def test_gradients_may_be_sent_in_16_bits(train: Cli, dtype: str) -> None:
    """Half of the traffic, and no longer exact: the curve differs, but little.

    Under SGD: it keeps a small error of a gradient small, and AdamW does not.
    """
    same = ("strategy=ddp", "optimizer=sgd", "trainer.max_epochs=4", FLOAT64)
    whole = column(train(*same).run, "train/loss")
    short = column(train(*same, f"strategy.communication_dtype={dtype}").run, "train/loss")
    assert 1e-6 < largest_difference(whole, short) < 0.01


@pytest.mark.long
@pytest.mark.compares
@pytest.mark.parametrize(
    "key", ["find_unused_parameters=true", "static_graph=true", "gradient_as_bucket_view=false"]
)
def test_other_keys_of_ddp_change_no_number(train: Cli, trained: Cli, key: str) -> None:
    whole = column(trained("strategy=ddp", FLOAT64).run, "train/loss")
    other = column(train("strategy=ddp", FLOAT64, f"strategy.{key}").run, "train/loss")
    assert largest_difference(whole, other) <= ROUNDING


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
