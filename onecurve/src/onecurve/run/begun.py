"""How far a run had come before it was resumed with steps of another size."""

from collections.abc import Mapping
from typing import Any, NamedTuple

# What the number of steps in an epoch follows from.
OF_STEPS = (
    ("data",),
    ("trainer", "accumulate_grad_batches"),
    ("trainer", "limit_train_batches"),
    ("callbacks", "gradient_accumulation"),
)


class Begun(NamedTuple):
    """How far a run had come."""

    epochs: int
    """That are over."""
    batches: int
    """Of the epoch that goes on."""
    steps: int
    """Of the optimizer, in all."""


def begun_with_other_steps(
    checkpoint: Mapping[str, Any], config: Mapping[str, Any]
) -> Begun | None:
    """How far a checkpoint's run had come; None if all steps were of the size that they are now.

    Args:
        checkpoint: Lightning's dictionary, with the configuration of the run that wrote it.
        config: The resolved configuration of this run.
    """
    before = checkpoint.get("config") or config
    is_alike = all(_value(before, path) == _value(config, path) for path in OF_STEPS)
    if is_alike and not checkpoint.get("had_other_steps"):
        return None
    loop = checkpoint["loops"]["fit_loop"]
    progress = loop["epoch_loop.batch_progress"]
    batches: int = progress["current"]["processed"]
    epochs: int = loop["epoch_progress"]["current"]["ready"]
    if batches and progress["is_last_batch"]:
        return Begun(epochs, 0, checkpoint["global_step"])
    return Begun(max(0, epochs - 1), batches, checkpoint["global_step"])


def _value(config: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        config = (config or {}).get(key)
    return config
