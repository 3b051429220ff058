"""What the displays cannot do without."""

from collections.abc import Iterator

from ..composed_run import ComposedRun


def refusals(run: ComposedRun, key: str) -> Iterator[str]:
    """Why there is nothing that they could write to."""
    name, writer = key.rpartition(".")[2], run.get(f"{key}.writer")
    if not run.get(f"logger.{writer}"):
        yield (
            f"callbacks={name}: writes through logger.{writer}, which was taken away; "
            f"add +logger={writer}, or use '~{key}'"
        )
