"""Colours that can be told apart on white and on black."""

from collections.abc import Sequence

from .contents import Contents

PALETTE = (
    "#4c86c6",
    "#e8843c",
    "#4da760",
    "#d2565a",
    "#9673c4",
    "#a2786c",
    "#d97bb9",
    "#8f8f8f",
    "#b5aa2e",
    "#37b3c3",
)

# From worst to best.
SCALE = ((76, 120, 190), (140, 110, 180), (200, 95, 140), (232, 120, 80), (240, 170, 50))

NO_VALUE = "#8f8f8f"


def by_rank(contents: Contents) -> dict[str, str]:
    """A colour for each job, by its place among those that have the first objective."""
    sign = contents.objectives[0].sign if contents.objectives else 1.0
    costs = {
        job.name: sign * job.values[0]
        for job in contents.jobs
        if job.values and job.values[0] is not None
    }
    ranked = sorted(costs, key=lambda name: costs[name])
    last = max(len(ranked) - 1, 1)
    colors = {name: blend(1 - index / last) for index, name in enumerate(ranked)}
    return {job.name: colors.get(job.name, NO_VALUE) for job in contents.jobs}


def by_job(contents: Contents) -> dict[str, str]:
    """A colour for each job: one of its own as long as there are enough, then by its rank."""
    jobs = contents.in_order()
    if len(jobs) > len(PALETTE):
        return by_rank(contents)
    return {job.name: color for job, color in zip(jobs, PALETTE, strict=False)}


def blend(position: float) -> str:
    """The colour at a position between 0, worst, and 1, best."""
    place = min(max(position, 0.0), 1.0) * (len(SCALE) - 1)
    low = min(int(place), len(SCALE) - 2)
    return _hex(
        [
            below + (above - below) * (place - low)
            for below, above in zip(SCALE[low], SCALE[low + 1], strict=True)
        ]
    )


def _hex(parts: Sequence[float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in parts)
