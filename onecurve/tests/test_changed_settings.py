"""What is changed for a run that goes on is changed, or refused: no state undoes it in silence."""

from pathlib import Path

import pytest
import torch
from conftest import EPOCH, FLOAT64, TINY, Cli, column, one_of_a_kind
from lightning.pytorch import Callback, LightningModule, Trainer

SGD = (
    "model=mlp", "data.image_size=8", "data.batch_size=256", "logger=csv", "test=false", FLOAT64,
    "callbacks=[checkpoint,early_stopping]", "callbacks.early_stopping.patience=3",
    "optimizer=sgd", "optimizer.lr=0.02", "scheduler=cosine",
)  # fmt: skip


class InTheSecondEpoch(Callback):
    """Changes by hand what the other run changes on its command line."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 1:
            (optimizer,) = trainer.optimizers
            schedule = trainer.lr_scheduler_configs[0].scheduler
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
                group["weight_decay"] = 0.1
            schedule.base_lrs = [rate * 0.5 for rate in schedule.base_lrs]


class StopAfterOne(Callback):
    """Ends a run before its time."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = True


@pytest.fixture
def checkpoint(trained: Cli) -> Path:
    """The end of the first epoch of two."""
    stop = "+callbacks.stop._target_=test_changed_settings.StopAfterOne"
    return trained(*SGD, stop).run / "checkpoints" / "last.ckpt"


def test_another_learning_rate_and_argument_of_a_callback_are_taken(
    train: Cli, checkpoint: Path
) -> None:
    patience = "callbacks.early_stopping.patience=7"
    changed = ("optimizer.lr=0.01", "optimizer.weight_decay=0.1", patience)
    resumed = train(*SGD, *changed, f"resume={checkpoint}")
    assert "optimizer.lr=0.01 (was 0.02): all learning rates are multiplied by 0.5" in resumed.out
    assert f"{patience} (was 3)" in resumed.out
    by_hand = train(*SGD, "+callbacks.hand._target_=test_changed_settings.InTheSecondEpoch")
    ours, theirs = (
        torch.load(run.run / "checkpoints/last.ckpt", weights_only=True)
        for run in (resumed, by_hand)
    )
    for name, weight in theirs["state_dict"].items():
        assert torch.equal(ours["state_dict"][name], weight)
    (early,) = (ours["callbacks"][name] for name in ours["callbacks"] if "EarlyStopping" in name)
    assert early["patience"] == 7


def test_what_cannot_change_is_refused(cli: Cli, checkpoint: Path) -> None:
    for change, answer in (
        ("seed=5", "seed=5: the run was begun with seed=0"),
        ("scheduler=plateau", "scheduler: the run was begun with small.schedulers.cosine"),
    ):
        refused = cli("train.py", *TINY, *SGD, change, f"resume={checkpoint}")
        assert refused.status == 2
        assert answer in refused.err
        assert "init=CHECKPOINT" in refused.err


@pytest.mark.parametrize("steps", one_of_a_kind([EPOCH + 4, 2 * EPOCH], kept=[EPOCH + 4]))
@pytest.mark.parametrize("validates", one_of_a_kind([True, False], kept=[True]))
def test_more_steps_go_on_as_one_run(train: Cli, trained: Cli, steps: int, validates: bool) -> None:
    off = () if validates else ("trainer.limit_val_batches=0", "monitor=train/loss", "mode=min")
    plain = ("callbacks=[checkpoint]", "scheduler=none", "test=false", FLOAT64)
    options = (*TINY, *plain, "trainer.max_epochs=3", *off)
    stopped = train(*options, f"trainer.max_steps={steps}").run
    last = stopped / "checkpoints" / "last.ckpt"
    resumed = train(*options, f"trainer.max_steps={3 * EPOCH - 1}", f"resume={last}").run
    found = column(stopped, "train/loss") + column(resumed, "train/loss")
    assert found == column(trained(*options).run, "train/loss")[:-1]
