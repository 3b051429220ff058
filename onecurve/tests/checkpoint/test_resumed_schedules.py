"""What a run may go on with: another length of a schedule, but no other optimizer."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from several_fits import Saves, Small, data, quiet_trainer
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    OneCycleLR,
    SequentialLR,
)
from torch.utils.data import DataLoader, TensorDataset

import onecurve
from onecurve.app.run.stop import end_of_training
from onecurve.errors import UserError


class Counted(nn.Module):
    """A layer whose state is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"calls": 3}

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def warmed_up(optimizer: Any, steps: int) -> Any:
    warmup = steps // 4
    parts: Any = [LinearLR(optimizer, 0.1, total_iters=warmup), CosineAnnealingLR(optimizer, steps)]
    return SequentialLR(optimizer, parts, milestones=[warmup])


# And `LambdaLR`, as a command has it: test_resume.py.
CURVES: dict[str, Any] = {
    "OneCycleLR": lambda optimizer, steps: OneCycleLR(optimizer, 0.1, steps),
    "CosineAnnealingLR": CosineAnnealingLR,
    "SequentialLR": warmed_up,
}


class Scheduled(Small):
    def __init__(
        self, optimizer: str = "AdamW", groups: int = 1, schedule: Any = CosineAnnealingLR
    ) -> None:
        super().__init__()
        self.optimizer, self.groups, self.schedule = optimizer, groups, schedule
        self.rates: list[float] = []

    def network(self) -> nn.Module:
        return nn.Sequential(super().network(), Counted())

    def on_train_batch_start(self, *_: Any) -> None:
        group = self.trainer.optimizers[0].param_groups[0]
        self.rates += [group["lr"], *group["betas"]]

    def configure_optimizers(self) -> Any:
        parameters = list(self.parameters())
        groups = [{"params": parameters[number :: self.groups]} for number in range(self.groups)]
        optimizer = getattr(torch.optim, self.optimizer)(groups, lr=0.1)
        scheduler = self.schedule(optimizer, int(self.trainer.estimated_stepping_batches))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def fit(
    task: Scheduled, epochs: int, resume: Path | None, *callbacks: L.Callback, **options: Any
) -> L.Trainer:
    options |= {"max_epochs": epochs, "callbacks": list(callbacks)}
    trainer = quiet_trainer(onecurve.Single(), **options)
    trainer.fit(task, data(32), ckpt_path=resume)  # four steps an epoch
    return trainer


def rates(schedule: Any, epochs: int, resume: Path | None = None) -> list[float]:
    """The learning rate and momenta of each step."""
    task = Scheduled(schedule=schedule)
    fit(task, epochs, resume)
    return task.rates


@pytest.mark.parametrize("name", CURVES)
def test_a_schedule_goes_on_along_the_curve_of_the_longer_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    schedule, file = CURVES[name], tmp_path / "one.ckpt"
    fit(Scheduled(schedule=schedule), 1, None).save_checkpoint(file)
    expected = rates(schedule, 2)
    assert rates(schedule, 2, file) == pytest.approx(expected[len(expected) // 2 :], rel=1e-12)
    said = capsys.readouterr().err
    assert said.count("resume: ") == 1
    assert f"resume: {name} continues along the curve of this run: lr=" in said


def test_a_schedule_that_does_not_tell_its_length_is_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def falls(optimizer: Any, steps: int) -> Any:
        return ExponentialLR(optimizer, 0.01 ** (1 / steps))

    fit(Scheduled(schedule=falls), 1, None).save_checkpoint(tmp_path / "one.ckpt")
    assert rates(falls, 2, tmp_path / "one.ckpt")[0] == pytest.approx(0.001)
    assert "resume: " not in capsys.readouterr().err


def test_another_optimizer_is_refused_before_the_first_step(tmp_path: Path) -> None:
    fit(Scheduled(), 1, None).save_checkpoint(tmp_path / "one.ckpt")
    for task in (Scheduled("SGD"), Scheduled("Adagrad"), Scheduled(groups=2)):
        words = rf"is of another one than {task.optimizer}, or of other groups .* init=CHECKPOINT"
        with pytest.raises(UserError, match=words):
            fit(task, 2, tmp_path / "one.ckpt")


def test_a_loader_without_a_batch_is_why_a_run_ends() -> None:
    trainer = quiet_trainer(onecurve.Single(), max_epochs=2)
    trainer.fit(Small(), DataLoader(TensorDataset(torch.ones(3, 2)), 4, drop_last=True))
    assert end_of_training(trainer).reason == "data: its training loader has no batch"


def test_gradients_that_a_checkpoint_does_not_hold_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "inside.ckpt"
    fit(Scheduled(), 2, None, Saves(path, "on_train_batch_end", 1), accumulate_grad_batches=2)
    fit(Scheduled(), 2, path, accumulate_grad_batches=2)
    assert "was written after 1 of 2 accumulated batches" in capsys.readouterr().out
