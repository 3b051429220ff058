"""What the displays cannot do without."""

from collections.abc import Iterator

from ..plan import Plan


def refusals(plan: Plan, key: str) -> Iterator[str]:
    """Why there is nothing that they could write to."""
    name, writer = key.rpartition(".")[2], plan.get(f"{key}.writer")
    if not plan.get(f"logger.{writer}"):
        yield (
            f"callbacks={name}: writes through logger.{writer}, which was taken away; "
            f"add +logger={writer}, or use ~{key}"
        )
