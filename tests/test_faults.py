"""A short version of benchmarks/faults.py: a fault under each strategy; in the long one, all kinds.

The engine's tests have each fault under each strategy, with fewer steps.
"""

import subprocess
import sys

import pytest
from baking import TEMPLATE


@pytest.mark.slow
@pytest.mark.parametrize("injections", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_runs_that_are_injured_come_to_the_right_end(injections: str) -> None:
    """In the project that `make bake` made, whose package is installed beside these tests."""
    program = TEMPLATE / "benchmarks/faults.py"
    done = subprocess.run(
        [sys.executable, str(program), injections, "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table, _, _ = done.stdout.partition("\n\n")
    rows = [line.split() for line in table.splitlines()[1:]]
    assert [row[0] for row in rows] == ["single", "ddp", "fsdp", "pipeline"]
    assert all(row[1] == row[2] == injections for row in rows), done.stdout
    assert all(row[-1] == "0" for row in rows), done.stdout
