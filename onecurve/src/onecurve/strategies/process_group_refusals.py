"""What the process group of ranks cannot be: for the refusals of the strategies."""

from collections.abc import Iterator

from ..composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Refuse NCCL without a GPU."""
    if run.get(f"{key}.backend") == "nccl" and run.accelerator != "cuda":
        yield (
            f"{key}.backend=nccl: NCCL connects GPUs, and this run is on {run.accelerator}; use "
            f"{key}.backend=auto"
        )
