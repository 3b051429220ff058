"""The task of this project."""

from typing import Any

import pytest
from conftest import TWO_STEPS, composed, shipped
from hydra.utils import instantiate
from onecurve.testing.runs import column


@shipped("task/classification", "callbacks/checkpoint")
def test_a_checkpoint_makes_the_task_again(once: Any) -> None:
    """`load_from_checkpoint` as of any LightningModule, and the loss that was logged."""
    from {{ cookiecutter.package_name }}.tasks.classification import Classification

    run = once(*TWO_STEPS, "task=classification", "task.label_smoothing=0.1")
    task = Classification.load_from_checkpoint(run / "checkpoints/last.ckpt").eval()
    data: Any = instantiate(composed("data.batch_size=8").data)
    data.prepare_data()
    data.setup("fit")
    inputs, labels = data.on_after_batch_transfer(next(iter(data.val_dataloader())), 0)
    # float32, as the run
    logged = column(run, "val/loss")[-1]
    assert task.loss(task(inputs), labels).item() == pytest.approx(logged, rel=1e-6)
