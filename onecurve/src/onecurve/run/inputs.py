"""What goes into a task's network, and out of which samples it is made."""

from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from ..errors import UserError
from ..strategies.prepared import prepared


def network_inputs(task: LightningModule, batch: Any) -> tuple[Any, ...]:
    """What the task passes to its `forward` for a batch.

    That is the first part of what its `prepare` returns, or of the batch where it has none.
    """
    made = prepared(task, batch)
    first = batch[0] if isinstance(batch, tuple | list) else batch
    inputs = first if made is None else made.inputs
    return inputs if isinstance(inputs, tuple) else (inputs,)


def example_inputs(task: LightningModule, data: LightningDataModule) -> tuple[Tensor, ...]:
    """What the network gets for the first batch of the samples to predict, on the CPU.

    Raises:
        UserError: If that is something else than tensors whose first dimension is the batch.
    """
    found: list[tuple[Any, ...]] = []

    def look(batch: Any, batch_idx: int, dataloader_idx: int = 0) -> bool:
        found.append(network_inputs(task, batch))
        return True

    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        limit_predict_batches=1,
        inference_mode=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    take_test_set(data)
    task.predict_step = look  # type: ignore[method-assign]
    trainer.predict(task, datamodule=data, return_predictions=False)
    del task.predict_step
    task.trainer = None
    inputs = found[0] if found else ()
    are_tensors = all(isinstance(value, Tensor) and value.ndim for value in inputs)
    if not inputs or not are_tensors or len({len(value) for value in inputs}) != 1:
        raise UserError(
            f"{type(task).__name__}: its network gets something else than tensors with a row a "
            "sample, which cannot be exported; return these from prepare"
        )
    return inputs


def take_test_set(data: LightningDataModule) -> bool:
    """Let the samples of the test be those to predict, where a data module names no others.

    Returns:
        Whether it is so.

    Raises:
        UserError: If there are none either.
    """
    if is_overridden("predict_dataloader", data):
        return False
    if not is_overridden("test_dataloader", data):
        raise UserError(
            f"data: {type(data).__name__} has neither predict_dataloader nor test_dataloader, so "
            "there are no samples to predict; write one of them"
        )
    setup = data.setup
    data.setup = lambda stage: setup("test")  # type: ignore[method-assign]
    data.predict_dataloader = data.test_dataloader  # type: ignore[method-assign]
    return True
