"""Loggers that a resumed run can rewind."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ResumableLogger(Protocol):
    """A logger that a run which resumes in the same directory rewinds to the checkpoint.

    A logger without these methods logs some steps twice.
    """

    def position(self) -> dict[str, Any]:
        """The position, as plain data for a checkpoint, once everything logged is on the disk.

        Called on rank 0.
        """

    def go_on_from(self, position: dict[str, Any] | None) -> None:
        """Drop what was logged after a position, before anything else is logged.

        Args:
            position: What `position` returned; None if the checkpoint has none of this logger.
        """
