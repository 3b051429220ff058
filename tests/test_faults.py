"""A short version of benchmarks/faults.py: two faults under each strategy, all kinds in all.

The library's tests have each fault under each strategy, with fewer steps, in `make test`, too.
"""

import sys

import pytest
from baking import TEMPLATE, run_in


@pytest.mark.long
def test_runs_that_are_injured_come_to_the_right_end() -> None:
    """In the project that `make bake` made, whose package is installed beside these tests."""
    program = TEMPLATE / "benchmarks/faults.py"
    done = run_in(TEMPLATE, sys.executable, program, "2", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    table, _, _ = done.stdout.partition("\n\n")
    rows = [line.split() for line in table.splitlines()[1:]]
    assert [row[0] for row in rows] == ["single", "ddp", "fsdp", "pipeline"]
    assert all(row[1] == row[2] == "2" for row in rows), done.stdout
    assert all(row[-1] == "0" for row in rows), done.stdout
