"""What the process group of ranks cannot be: for the refusals of the strategies."""

from collections.abc import Iterator

from ..plan import Plan


def refusals(plan: Plan, key: str) -> Iterator[str]:
    """Refuse NCCL without a GPU."""
    if plan.get(f"{key}.backend") == "nccl" and plan.accelerator != "cuda":
        yield (
            f"{key}.backend=nccl: NCCL connects GPUs, and this run is on {plan.accelerator}; use "
            f"{key}.backend=auto"
        )
