"""What a run may go on with: another length of a schedule, but no other optimizer."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import onecurve
from onecurve.checkpoint.contents import refuse_other_network
from onecurve.errors import UserError

STEPS_AN_EPOCH = 4


class Counted(nn.Module):
    """A layer whose state is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"calls": 3}

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


class Task(L.LightningModule):
    def __init__(self, optimizer: str = "AdamW", groups: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 2), Counted())
        self.optimizer = optimizer
        self.groups = groups

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.net(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        parameters = list(self.net.parameters())
        groups = [{"params": parameters[number :: self.groups]} for number in range(self.groups)]
        optimizer = getattr(torch.optim, self.optimizer)(groups, lr=0.1)
        steps = int(self.trainer.estimated_stepping_batches)
        cycle_momentum = self.optimizer != "Adagrad"
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=steps, cycle_momentum=cycle_momentum
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def fit(task: Task, epochs: int, checkpoint: Path | None = None) -> L.Trainer:
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        strategy=onecurve.Single(),
    )
    data = DataLoader(TensorDataset(torch.ones(2 * STEPS_AN_EPOCH, 2)), batch_size=2)
    trainer.fit(task, data, ckpt_path=checkpoint)
    return trainer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "one.ckpt"
    fit(Task(), epochs=1).save_checkpoint(path)
    return path


def test_a_schedule_of_the_whole_run_goes_on_along_that_of_the_longer_one(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resumed = fit(Task(), 2, checkpoint)
    whole = fit(Task(), 2)
    assert resumed.global_step == 2 * STEPS_AN_EPOCH
    here, there = (run.lr_scheduler_configs[0].scheduler for run in (resumed, whole))
    assert here.get_last_lr() == there.get_last_lr()
    assert "OneCycleLR was for 4 steps and goes on along the curve of 8" in capsys.readouterr().err


OTHERS = [
    (Task("SGD"), "is of another than SGD: it has amsgrad, betas,"),
    (Task("Adagrad"), "is of another than Adagrad"),
    (Task(groups=2), "has 1 groups of parameters, and AdamW has 2 here"),
]


@pytest.mark.parametrize(("task", "words"), OTHERS, ids=lambda value: "")
def test_another_optimizer_is_refused_before_the_first_step(
    checkpoint: Path, task: Task, words: str
) -> None:
    with pytest.raises(UserError, match=words) as refused:
        fit(task, 2, checkpoint)
    assert "init=CHECKPOINT" in str(refused.value)


def test_a_state_that_is_no_tensor_is_compared_by_name_alone() -> None:
    task = Task()
    refuse_other_network(task, {"state_dict": task.state_dict()}, "file")
    with pytest.raises(UserError, match=r"net\.0\.weight is not in the checkpoint"):
        refuse_other_network(task, {"state_dict": nn.Linear(2, 2).state_dict()}, "file")
    state = {**task.state_dict(), "net.0.bias": 3}
    with pytest.raises(UserError, match=r"net.0.bias is no tensor there and \(2,\) here"):
        refuse_other_network(task, {"state_dict": state}, "file")
