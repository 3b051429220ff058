"""strategy=pipeline: numbers of micro-batches.

Which modules it trains, and which it rejects, are rows of tests/parity/cases.py.
"""

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
