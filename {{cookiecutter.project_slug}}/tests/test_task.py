"""The task trains, and a checkpoint makes it again."""

from typing import Any

from conftest import TWO_STEPS, composed
from hydra.utils import get_class
from onecurve.testing.runs import column


def test_two_steps(once: Any) -> None:
    run = once(*TWO_STEPS)
    assert len(column(run, "train/loss")) == 2
    kind: Any = get_class(composed().task._target_)
    # As of any LightningModule.
    task = kind.load_from_checkpoint(run / "checkpoints/last.ckpt")
    assert (
        task.network.state_dict().keys()
        == kind.load_from_checkpoint(run / "checkpoints/best.ckpt").network.state_dict().keys()
    )
