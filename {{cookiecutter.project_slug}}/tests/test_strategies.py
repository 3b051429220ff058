"""What holds at the edges: rounding, batches smaller than the ranks, sweeps. See test_parity.py."""

import json

import pytest
from conftest import Cli, column, largest_difference

# 1,297 training samples: 25 batches of 50 and one of 47, which two and three ranks share unevenly.
FIFTY_STEPS = ("data.batch_size=50", "trainer.max_epochs=2")


def test_the_difference_is_rounding(train: Cli) -> None:
    """In float64 it vanishes, also where three ranks have 17, 17 and 16 samples of a batch."""
    double = (*FIFTY_STEPS, "trainer.precision=64-true")
    single = train(*double)
    ddp = train(*double, "strategy=ddp", "trainer.devices=3")
    difference = largest_difference(column(single.run, "train/loss"), column(ddp.run, "train/loss"))
    # Loggers write float32.
    assert difference <= 2e-7


def test_a_batch_smaller_than_the_ranks_counts_by_sample(train: Cli) -> None:
    """1,297 = 432 x 3 + 1: in the last step one rank has a sample and the other has none."""
    few = ("data.batch_size=3", "trainer.max_epochs=1", "trainer.precision=64-true")
    single = train(*few)
    ddp = train(*few, "strategy=ddp")
    assert len(column(single.run, "train/loss")) == 433
    assert (
        largest_difference(column(single.run, "train/loss"), column(ddp.run, "train/loss")) < 2e-7
    )


def test_every_job_of_a_sweep_has_its_own_world(cli: Cli) -> None:
    """Ranks are not sweepers: three jobs make three directories, each of the right world size."""
    outcome = cli(
        "train.py", "-m", "model=mlp", "data.image_size=8", "logger=csv",
        "callbacks=[]", "trainer.max_epochs=1", "strategy=ddp", "trainer.devices=1,2,3",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    assert [path.name[:2] for path in outcome.runs] == ["01", "02", "03"]
    facts = [json.loads((run / "metrics.json").read_text()) for run in outcome.runs]
    assert [fact["world_size"] for fact in facts] == [1, 2, 3]
    curves = [column(run, "train/loss") for run in outcome.runs]
    assert largest_difference(curves[0], curves[1]) <= 1e-5
    assert largest_difference(curves[0], curves[2]) <= 1e-5


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_gradients_may_be_sent_in_16_bits(train: Cli, dtype: str) -> None:
    """Half of the traffic, and no longer exact: the curve differs, but little."""
    whole = column(train("strategy=ddp").run, "train/loss")
    short = column(train("strategy=ddp", f"strategy.communication_dtype={dtype}").run, "train/loss")
    assert 1e-6 < largest_difference(whole, short) < 0.05


@pytest.mark.parametrize(
    "key", ["find_unused_parameters=true", "static_graph=true", "gradient_as_bucket_view=false"]
)
def test_other_keys_of_ddp_change_no_number(train: Cli, key: str) -> None:
    whole = column(train("strategy=ddp").run, "train/loss")
    other = column(train("strategy=ddp", f"strategy.{key}").run, "train/loss")
    assert largest_difference(whole, other) <= 1e-6
