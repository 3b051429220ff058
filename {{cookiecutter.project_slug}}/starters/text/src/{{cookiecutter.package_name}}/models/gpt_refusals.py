"""What a GPT cannot be given."""

from collections.abc import Iterator

from onecurve.composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why its heads cannot be made, or why it cannot read the windows of the data."""
    width, heads = run.get(f"{key}.width"), run.get(f"{key}.heads")
    if width % heads:
        fits = max(number for number in range(1, min(width, heads) + 1) if width % number == 0)
        yield (
            f"{key}.heads={heads}: must divide {key}.width={width}; use {key}.heads={fits}, "
            f"or {key}.width={-(-width // heads) * heads}"
        )
    context, window = run.get(f"{key}.context"), run.get("data.context")
    if isinstance(window, int) and window > context:
        yield (
            f"{key}.context={context}: must be at least data.context={window}; "
            f"use {key}.context={window}, or leave it out"
        )
