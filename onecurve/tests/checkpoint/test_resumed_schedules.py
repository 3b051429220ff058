"""What a run may go on with: another length of a schedule, but no other optimizer."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from several_fits import Saves, quiet_trainer
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)
from torch.utils.data import DataLoader, TensorDataset

import onecurve
from onecurve.app.run.stop import end_of_training
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


def one_cycle(optimizer: Any, steps: int) -> Any:
    cycle_momentum = not isinstance(optimizer, torch.optim.Adagrad)
    return OneCycleLR(optimizer, 0.1, total_steps=steps, cycle_momentum=cycle_momentum)


def warmed_up(optimizer: Any, steps: int) -> Any:
    warmup = steps // 4
    parts: Any = [LinearLR(optimizer, 0.1, total_iters=warmup), CosineAnnealingLR(optimizer, steps)]
    return SequentialLR(optimizer, parts, milestones=[warmup])


class Falls(LRScheduler):
    """Says of itself neither its length nor how it goes on."""

    def __init__(self, optimizer: Any, steps: int) -> None:
        self.factor = 0.01 ** (1 / steps)
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        is_first = self.last_epoch == 0
        factor = 1.0 if is_first else self.factor
        return [group["lr"] * factor for group in self.optimizer.param_groups]


# And `LambdaLR`, as a command has it: test_resume.py.
CURVES = {
    "OneCycleLR": one_cycle,
    "CosineAnnealingLR": CosineAnnealingLR,
    "SequentialLR": warmed_up,
}


class Task(L.LightningModule):
    def __init__(
        self, optimizer: str = "AdamW", groups: int = 1, schedule: Any = one_cycle, lr: float = 0.1
    ) -> None:
        super().__init__()
        self.schedule = schedule
        self.lr = lr
        self.rates: list[float] = []
        self.net = nn.Sequential(nn.Linear(2, 2), Counted())
        self.optimizer = optimizer
        self.groups = groups

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.net(batch[0]).square().mean()
        group = self.trainer.optimizers[0].param_groups[0]
        self.rates += [group["lr"], *group.get("betas", ())]
        return loss

    def configure_optimizers(self) -> Any:
        parameters = list(self.net.parameters())
        groups = [{"params": parameters[number :: self.groups]} for number in range(self.groups)]
        optimizer = getattr(torch.optim, self.optimizer)(groups, lr=self.lr)
        scheduler = self.schedule(optimizer, int(self.trainer.estimated_stepping_batches))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def fit(
    task: Task, epochs: int, checkpoint: Path | None = None, *callbacks: L.Callback, **options: Any
) -> L.Trainer:
    options |= {"max_epochs": epochs, "callbacks": list(callbacks)}
    trainer = quiet_trainer(onecurve.Single(), **options)
    data = DataLoader(TensorDataset(torch.ones(2 * STEPS_AN_EPOCH, 2)), batch_size=2)
    trainer.fit(task, data, ckpt_path=checkpoint)
    return trainer


def rates(epochs: int, checkpoint: Path | None = None, **options: Any) -> list[float]:
    """The learning rate and momenta of each step."""
    task = Task(**options)
    fit(task, epochs, checkpoint)
    return task.rates


@pytest.mark.parametrize("name", CURVES)
def test_a_schedule_goes_on_along_the_curve_of_the_longer_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    schedule, file = CURVES[name], tmp_path / "one.ckpt"
    fit(Task(schedule=schedule), 1).save_checkpoint(file)
    expected = rates(2, schedule=schedule)
    resumed = rates(2, file, schedule=schedule)
    assert resumed == pytest.approx(expected[len(expected) // 2 :], rel=1e-12)
    said = capsys.readouterr().err
    assert said.count("resume: ") == 1
    assert f"resume: {name} continues along the curve of this run: lr=" in said


def test_a_schedule_that_does_not_tell_its_length_is_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.ckpt"
    fit(Task(schedule=Falls), 1).save_checkpoint(file)
    assert rates(2, file, schedule=Falls)[0] == pytest.approx(0.001)
    assert "resume: " not in capsys.readouterr().err


def test_another_optimizer_is_refused_before_the_first_step(tmp_path: Path) -> None:
    fit(Task(), 1).save_checkpoint(tmp_path / "one.ckpt")
    for task in (Task("SGD"), Task("Adagrad"), Task(groups=2)):
        words = rf"is of another one than {task.optimizer}, or of other groups .* init=CHECKPOINT"
        with pytest.raises(UserError, match=words):
            fit(task, 2, tmp_path / "one.ckpt")


def test_a_loader_without_a_batch_is_why_a_run_ends() -> None:
    trainer = quiet_trainer(onecurve.Single(), max_epochs=2)
    loader = DataLoader(TensorDataset(torch.ones(3, 2)), batch_size=4, drop_last=True)
    trainer.fit(Task(schedule=CosineAnnealingLR), loader)
    assert end_of_training(trainer).reason == "data: its training loader has no batch"


def test_gradients_that_a_checkpoint_does_not_hold_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "inside.ckpt"
    fit(Task(), 2, None, Saves(path, "on_train_batch_end", 1), accumulate_grad_batches=2)
    fit(Task(), 2, path, accumulate_grad_batches=2)
    assert "was written after 1 of 2 accumulated batches" in capsys.readouterr().out
