"""What a run that goes on asks of loggers."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ResumableLogger(Protocol):
    """A logger of Lightning's that a run in the same directory goes on with.

    One without these methods is told nothing, and logs some steps twice.
    """

    def position(self) -> dict[str, Any]:
        """How far it has come, in plain data for a checkpoint; all that was logged is on the disk.

        Called on the first rank.
        """

    def go_on_from(self, position: dict[str, Any] | None) -> None:
        """Drop what was logged after a position, before anything else is logged.

        Args:
            position: What `position` returned; None if the checkpoint has none of this logger.
        """
