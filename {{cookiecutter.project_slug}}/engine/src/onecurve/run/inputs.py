"""What of a batch goes into a task's network."""

from typing import Any

from lightning.pytorch import LightningModule


def network_inputs(task: LightningModule, batch: Any) -> tuple[Any, ...]:
    """What the task passes to its `forward` for a batch.

    That is the first part of what its `prepare` returns, or of the batch where it has none.
    """
    prepare = getattr(task, "prepare", None)
    if callable(prepare):
        inputs, _ = prepare(batch)
    else:
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
    return inputs if isinstance(inputs, tuple) else (inputs,)
