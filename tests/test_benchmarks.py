"""The programs under benchmarks/ still run: each as short as it can be, whatever it measures."""

import sys

import pytest
from baking import TEMPLATE, run_in

# Those that take minutes at their shortest are parts of what other tests do.
SHORTEST = {
    "faults": ["2", "1"],
    "memory": [],
    "meshes": ["shard 2 x tensor 2"],
    "pipeline": ["2"],
    "planner": [],
    "startup": ["1"],
    "sweep": [],
}


@pytest.mark.long
@pytest.mark.parametrize("name", SHORTEST)
def test_a_benchmark_comes_to_its_end(name: str) -> None:
    """In the project that `make bake` made, whose package is installed beside these tests."""
    done = run_in(TEMPLATE, sys.executable, f"benchmarks/{name}.py", *SHORTEST[name])
    said = done.stdout + done.stderr
    # 1 says that a limit was missed, or that a run that was injured did not come out right.
    assert done.returncode in ((0,) if name == "faults" else (0, 1)), said
    assert "Traceback" not in said
    assert done.stdout.strip(), said  # a line is enough where nothing was found
