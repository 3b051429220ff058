"""Where in its epoch a checkpoint was written, and how loaders are put there."""

from typing import Any

from .shared_loader import SharedLoader


class EpochPosition:
    """Where in its epoch a checkpoint was written.

    Args:
        checkpoint: Lightning's dictionary, whose count of epochs is put right.

    Attributes:
        of_loaders: What each training loader that can tell its position said of it.
        is_inside: Whether the epoch had begun and was not over.
    """

    def __init__(self, checkpoint: dict[str, Any]) -> None:
        loop = checkpoint.get("loops", {}).get("fit_loop", {})
        batches = loop.get("epoch_loop.batch_progress", {})
        has_begun = batches.get("current", {}).get("completed", 0) > 0
        self.is_inside: bool = has_begun and not batches["is_last_batch"]
        if self.is_inside:
            _count_as_unfinished(loop["epoch_progress"])
        self.of_loaders = list(loop.get("state_dict", {}).get("combined_loader") or [])
        # Plain Lightning's say nothing of an ordinary loader.
        self.is_known = bool(self.of_loaders)

    def put(self, loader: Any) -> str | None:
        """Put the next training loader there.

        Returns:
            Why it starts again instead, where a file does not say where it stood.

        Raises:
            ValueError: If that cannot be. The message says why, and what else there is.
        """
        can_be_put = hasattr(loader, "load_state_dict")
        if can_be_put and self.of_loaders:
            inside = {"is_inside": self.is_inside} if isinstance(loader, SharedLoader) else {}
            loader.load_state_dict(self.of_loaders.pop(0), **inside)
            return None
        if not self.is_inside:
            return None
        if not can_be_put:
            raise ValueError(
                f"{type(loader).__name__} cannot be put where it stood; give it state_dict and "
                "load_state_dict"
            )
        if self.is_known:
            raise ValueError("there are more training loaders now; give as many as before")
        return (
            "resume: the epoch's data start again: the checkpoint does not say where they stood, "
            "so samples are seen twice"
        )


def _count_as_unfinished(epochs: dict[str, dict[str, int]]) -> None:
    """Count the epoch as begun: Lightning counts one that `max_steps` cut short as done, too."""
    for counts in epochs.values():
        counts["processed"] = counts["completed"] = counts["ready"] - 1
