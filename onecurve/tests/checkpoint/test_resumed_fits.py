"""What a fit that resumes goes on with.

What its epoch had counted, a network that is compiled or no longer is, and another length of a
schedule; but no other optimizer.
"""

from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import warm_ranks
from several_fits import Saves, Small, data, quiet_trainer
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import CatMetric, MaxMetric, MeanMetric

import onecurve
from onecurve.app.run.stop import end_of_training
from onecurve.errors import UserError


class Counts(L.LightningModule):
    """Logs sums, means and metrics of an epoch; some in its first batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.mean, self.most, self.all = MeanMetric(), MaxMetric(), CatMetric()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        rows = batch[0]
        log = partial(self.log, on_step=False, on_epoch=True)
        log("mean of rows", rows.mean())
        log("sum", rows.sum(), reduce_fx="sum")
        log("max", rows.max(), reduce_fx="max")
        if batch_idx == 0:
            log("first", rows.mean())
        for name in ("mean", "most"):
            getattr(self, name).update(rows)
            log(name, getattr(self, name))
        self.all.update(rows)
        return self.net(rows).mean()  # type: ignore[no-any-return]

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("seen", batch[0].mean())

    def on_train_epoch_end(self) -> None:
        self.log("rows", self.all.compute().sum())
        self.all.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.0)


def counted(
    ranks: int, resume: Path | None, epochs: int = 1, *callbacks: L.Callback, steps: int = -1
) -> dict[str, float]:
    """What the last epoch has logged."""
    strategy: Any = onecurve.DDP() if ranks > 1 else onecurve.Single()
    torch.manual_seed(1)
    trainer = quiet_trainer(
        strategy, ranks, max_epochs=epochs, max_steps=steps, callbacks=list(callbacks),
        precision="64-true",
    )  # fmt: skip
    rows = torch.tensor([9.0, 9, 7, 9, 8, 0, 3, 0, 0, 1], dtype=torch.float64)[:, None]
    loader = DataLoader(TensorDataset(rows), 3)
    trainer.fit(Counts(), loader, loader if steps < 0 else None, ckpt_path=resume)
    return {key: v.item() for key, v in trainer.callback_metrics.items() if key != "seen"}


@pytest.mark.parametrize(
    ("hook", "batch"), [("on_train_batch_end", 1), ("on_validation_end", None)]
)
def test_an_epoch_counts_what_it_had_counted(tmp_path: Path, hook: str, batch: int | None) -> None:
    """In one process to the bit; two ranks what one had counted, as in the next epoch, and back."""
    one, two = tmp_path / "one.ckpt", tmp_path / "two.ckpt"
    whole = counted(1, None, 1, Saves(one, hook, 0, batch))
    assert whole["rows"] == 46
    assert counted(1, one) == whole
    for epochs in (1, 2):
        expected = pytest.approx(counted(1, None, epochs), rel=1e-11)
        assert warm_ranks.run(counted, 2, one, epochs) == expected
    warm_ranks.run(counted, 2, None, 1, Saves(two, hook, 0, batch))
    assert counted(1, two) == pytest.approx(whole, rel=1e-11)


def test_an_epoch_that_max_steps_ended_counts_on(tmp_path: Path) -> None:
    counted(1, None, 1, Saves(tmp_path / "two.ckpt"), steps=2)
    assert counted(1, tmp_path / "two.ckpt") == counted(1, None)


class CompilesItsNetwork(Small):
    def network(self) -> nn.Module:
        compiled: nn.Module = torch.compile(super().network(), backend="eager")  # type: ignore[assignment]
        return compiled


@pytest.mark.parametrize("tasks", [(Small, CompilesItsNetwork), (CompilesItsNetwork, Small)])
def test_a_run_resumes_with_a_network_that_is_compiled_or_no_longer_is(
    tasks: tuple[type[Small], type[Small]], tmp_path: Path
) -> None:
    """torch.compile puts `_orig_mod` into the names of its weights."""
    first, second = (task() for task in tasks)
    one, two = (quiet_trainer(onecurve.Single(), max_epochs=1) for _ in tasks)
    one.fit(first, data())
    one.save_checkpoint(tmp_path / "first.ckpt")
    two.fit(second, data(), ckpt_path=tmp_path / "first.ckpt", weights_only=True)
    assert two.global_step == 3
    for ours, theirs in zip(second.parameters(), first.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def warmed_up(optimizer: Any, steps: int) -> Any:
    warmup = steps // 4
    parts: Any = [LinearLR(optimizer, 0.1, total_iters=warmup), CosineAnnealingLR(optimizer, steps)]
    return SequentialLR(optimizer, parts, milestones=[warmup])


def one_cycle(optimizer: Any, steps: int) -> Any:
    return OneCycleLR(optimizer, 0.1, steps)


class Scheduled(Small):
    def __init__(
        self, optimizer: str = "AdamW", groups: int = 1, schedule: Any = CosineAnnealingLR
    ) -> None:
        super().__init__()
        self.optimizer, self.groups, self.schedule = optimizer, groups, schedule
        self.rates: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        group = self.trainer.optimizers[0].param_groups[0]
        self.rates += [group["lr"], *group["betas"]]

    def configure_optimizers(self) -> Any:
        parameters = list(self.parameters())
        groups = [{"params": parameters[number :: self.groups]} for number in range(self.groups)]
        optimizer = getattr(torch.optim, self.optimizer)(groups, lr=0.1)
        scheduler = self.schedule(optimizer, int(self.trainer.estimated_stepping_batches))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def fit(task: Scheduled, epochs: int, resume: Path | None = None) -> L.Trainer:
    trainer = quiet_trainer(onecurve.Single(), max_epochs=epochs)
    trainer.fit(task, data(32), ckpt_path=resume)  # four steps an epoch
    return trainer


# And `LambdaLR`, as a command has it: test_resume.py.
@pytest.mark.parametrize(
    ("name", "schedule"), [("OneCycleLR", one_cycle), ("SequentialLR", warmed_up)]
)
def test_a_schedule_goes_on_along_the_curve_of_the_longer_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, schedule: Any
) -> None:
    """Learning rates and momenta of each step."""
    file, whole, rest = tmp_path / "one.ckpt", *(Scheduled(schedule=schedule) for _ in range(2))
    fit(Scheduled(schedule=schedule), 1).save_checkpoint(file)
    fit(whole, 2)
    fit(rest, 2, file)
    assert rest.rates == pytest.approx(whole.rates[len(whole.rates) // 2 :], rel=1e-12)
    said = capsys.readouterr().err
    assert said.count("resume: ") == 1
    assert f"resume: {name} continues along the curve of this run: lr=" in said


def test_another_optimizer_is_refused_before_the_first_step(tmp_path: Path) -> None:
    fit(Scheduled(), 1).save_checkpoint(tmp_path / "one.ckpt")
    for task in (Scheduled("SGD"), Scheduled("Adagrad"), Scheduled(groups=2)):
        words = rf"is of another one than {task.optimizer}, or of other groups .* init=CHECKPOINT"
        with pytest.raises(UserError, match=words):
            fit(task, 2, tmp_path / "one.ckpt")


def test_a_loader_without_a_batch_is_why_a_run_ends() -> None:
    trainer = quiet_trainer(onecurve.Single(), max_epochs=2)
    trainer.fit(Small(), DataLoader(TensorDataset(torch.ones(3, 2)), 4, drop_last=True))
    assert end_of_training(trainer).reason == "data: its training loader has no batch"
