"""strategy=pipeline: numbers of micro-batches, and what it prints.

Which modules it trains, and which it rejects, are rows of tests/parity/cases.py.
"""

from pathlib import Path

import pytest
from conftest import TINY
from processes import Command

from onecurve.strategies.pipeline import limits


def test_a_split_is_one_that_the_schedule_takes() -> None:
    """For every size of batch: equal parts, and a schedule that takes their number."""
    for name in limits.SCHEDULES:
        for ranks in (1, 2, 3, 4):
            for size in range(1, 40):
                schedule, count = limits.split(name, 4, ranks, size)
                assert size % count == 0
                assert limits.takes(schedule, count, ranks)
                assert schedule in (name, "gpipe")
    assert limits.split("1f1b", 4, 2, 50) == ("1f1b", 5)
    assert limits.split("1f1b", 4, 2, 47) == ("gpipe", 1)


@pytest.mark.slow
def test_a_run_says_how_the_network_is_cut(tmp_path: Path) -> None:
    """A line for each stage, and the idle time to expect."""
    # In a process of its own: what ranks print goes where their server's output went.
    options = ("strategy=pipeline", "trainer.max_epochs=1")
    out, _ = Command(tmp_path, "train.py", *TINY, *options).communicate()
    for words in (
        "network.flatten … network.relu1 (3)",
        "33,280",
        "imbalance 1.",
        "4 micro-batches of 16",
        "predicted bubble",
    ):
        assert words in out
