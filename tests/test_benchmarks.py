"""The programs under benchmarks/ still run: each as short as it can be, whatever it measures."""

import sys

import pytest
from baking import TEMPLATE, run_in

# Those that take minutes at their shortest are parts of what other tests do.
SHORTEST = {
    "fuzz_commands": ["20", "1"],
    "memory": [],
    "pipeline": ["2"],
    "planner": [],
    "startup": ["1"],
    "sweep": [],
}


@pytest.mark.long
@pytest.mark.parametrize("name", SHORTEST)
def test_a_benchmark_comes_to_its_end(name: str) -> None:
    """In the project that `make bake` made. Status 1 says that a limit was missed, or an error."""
    done = run_in(TEMPLATE, sys.executable, f"benchmarks/{name}.py", *SHORTEST[name])
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1), said
    assert "Traceback" not in said
    assert "a run failed" not in said
    assert done.stdout.strip(), said  # a line is enough where nothing was found
