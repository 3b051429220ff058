"""What a task changes in its own `on_train_batch_end` is in the checkpoint of that batch.

As in solo-learn's momentum methods and the EMA of latent diffusion. Lightning calls the task's hook
after those of callbacks, so a checkpoint that a callback writes at once would not have it.
"""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from several_fits import quiet_trainer
from test_resume import same
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import onecurve
from onecurve.app.run.stop import StopOnSignal
from onecurve.checkpoint.callback import BestAndLast
from onecurve.launch.context import Stopped

OPTIONS: dict[str, dict[str, Any]] = {
    "an epoch's end": {},
    "validation": {"val_check_interval": 2},
    "accumulation": {"accumulate_grad_batches": 2},
}


class Taught(L.LightningModule):
    """A student, and a teacher that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return (self.student(batch[0]) - self.teacher(batch[0]) - 1).square().mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("loss", self.teacher(batch[0]).mean())

    def on_train_batch_end(self, *_: Any) -> None:
        pairs = zip(self.teacher.parameters(), self.student.parameters(), strict=True)
        with torch.no_grad():
            for ours, theirs in pairs:
                ours.lerp_(theirs, 0.3)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.05)


def fitted(*callbacks: L.Callback, resume: Path | None = None, **options: Any) -> Taught:
    torch.manual_seed(2)
    task, rows = Taught(), TensorDataset(torch.randn(12, 3))
    loader = DataLoader(rows, 2, shuffle=True)
    options |= {"max_epochs": 2, "num_sanity_val_steps": 0, "enable_checkpointing": bool(callbacks)}
    trainer = quiet_trainer(onecurve.Single(), callbacks=[*callbacks], **options)
    trainer.fit(task, loader, DataLoader(rows, 4), ckpt_path=resume)
    return task


class Kept(BestAndLast):
    """Keeps the file of every step."""

    def _save_last_checkpoint(self, trainer: L.Trainer, candidates: dict[str, Any]) -> None:
        file = Path(str(self.dirpath), f"{trainer.fit_loop.epoch_loop.total_batch_idx}.ckpt")
        if not file.exists():  # otherwise that of the validation after the batch
            trainer.save_checkpoint(file)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_resumed_after_any_step_ends_with_the_same_teacher(name: str, tmp_path: Path) -> None:
    whole = fitted(Kept(dirpath=tmp_path, save_last=True, last_every_n_steps=1), **OPTIONS[name])
    files = sorted(tmp_path.glob("[0-9]*.ckpt"))
    assert len(files) >= 6
    for file in files:
        assert same(fitted(resume=file, **OPTIONS[name]).state_dict(), whole.state_dict())


@pytest.mark.parametrize("batch", [1, 5])  # the last of an epoch is saved before its validation
def test_a_run_that_a_signal_stops_has_the_teacher_of_its_last_step(
    batch: int, tmp_path: Path
) -> None:
    file = tmp_path / "last.ckpt"
    stops = StopOnSignal(file)

    class Sends(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
            stops.requested = int(trainer.fit_loop.batch_idx == batch)

    with pytest.raises(Stopped):
        fitted(Sends(), stops)
    assert same(fitted(resume=file).state_dict(), fitted().state_dict())
