"""What a GPT cannot be given."""

from collections.abc import Iterator

from onecurve.plan import Plan


def refusals(plan: Plan, key: str) -> Iterator[str]:
    """Why its heads cannot be made, or why it cannot read the windows of the data."""
    width, heads = plan.get(f"{key}.width"), plan.get(f"{key}.heads")
    if width % heads:
        fits = max(number for number in range(1, min(width, heads) + 1) if width % number == 0)
        yield (
            f"{key}.heads={heads}: must divide {key}.width={width}; use {key}.heads={fits}, "
            f"or {key}.width={-(-width // heads) * heads}"
        )
    context, window = plan.get(f"{key}.context"), plan.get("data.context")
    if isinstance(window, int) and window > context:
        yield (
            f"{key}.context={context}: must be at least data.context={window}; "
            f"use {key}.context={window}, or leave it out"
        )
