"""What an average of late weights cannot go together with."""

from collections.abc import Iterator

from ..composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why its average cannot be validated, or its start not be found."""
    if run.get(f"{key}.validate") is True and run.has("ema"):
        yield (
            f"{key}.validate=true: callbacks=ema has its own average validated; use "
            f"{key}.validate=false, or '~callbacks.ema'"
        )
    start = run.get(f"{key}.start", 0)
    if run.has("gradient_accumulation") and start >= 1:
        yield (
            f"{key}.start={start}: epochs have different numbers of steps with "
            "callbacks=gradient_accumulation; give a share of the run, such as "
            f"{key}.start=0.75"
        )
