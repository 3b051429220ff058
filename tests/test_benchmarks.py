"""The programs under benchmarks/ still run: each as short as it can be, whatever it measures."""

import subprocess
import sys

import pytest
from baking import TEMPLATE, run_in

# Those that take minutes at their shortest are parts of what other tests do.
SHORTEST = {
    "memory": [],
    "meshes": ["shard 2 x tensor 2"],
    "pipeline": ["2"],
    "planner": [],
    "startup": ["1"],
    "sweep": [],
}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In the project that `make bake` made, whose package is installed beside these tests."""
    return run_in(TEMPLATE, sys.executable, f"benchmarks/{name}.py", *arguments)


@pytest.mark.long
@pytest.mark.parametrize("name", SHORTEST)
def test_a_benchmark_comes_to_its_end(name: str) -> None:
    """Status 1 says that a limit was missed, or an error."""
    done = run(name, *SHORTEST[name])
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1), said
    assert "Traceback" not in said
    assert done.stdout.strip(), said  # a line is enough where nothing was found


@pytest.mark.long
def test_runs_that_are_injured_come_to_the_right_end() -> None:
    """Two faults under each strategy, all kinds in all; the library's tests have each of them."""
    done = run("faults", "2", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, *rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["single", "ddp", "fsdp", "pipeline"]
    assert all(row[1] == row[2] == "2" for row in rows), done.stdout
    assert all(row[-1] == "0" for row in rows), done.stdout
