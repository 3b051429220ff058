"""A run that is killed, stopped, moved or changed goes on as if nothing had happened."""

import os
import signal
import time
from collections.abc import Sequence
from copy import deepcopy
from csv import DictReader
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import EPOCH, TINY, Cli, Refused, column, run_directories
from events import Events
from lightning.pytorch import Callback, Trainer
from nodes import Start
from small.task import Classification
from torch import Tensor

from onecurve.optim.schedulers import cosine

# Augmentation draws random numbers in every step.
RANDOM = (
    "+data.augment.mask._target_=torch.nn.Dropout", "+data.augment.mask.p=0.1",
    "callbacks.checkpoint.last_every_n_steps=4", "logger=[csv,tensorboard]", "test=false",
)  # fmt: skip


class Die(Callback):
    """Sends a rank, or its node, a signal when training first comes to each of some steps."""

    def __init__(
        self, at: Sequence[int], rank: int = 0, sent: int = signal.SIGKILL, node: bool = False
    ) -> None:
        self.at, self.rank, self.sent, self.node = at, rank, sent, node

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        marker = Path(f"died-{trainer.global_step}")
        if trainer.global_step in self.at and not marker.exists():
            trainer.strategy.barrier()
            if trainer.global_rank == self.rank:
                marker.touch()
                print(f"signal {self.sent} in step {trainer.global_step}")
                if self.node:  # torchrun, its agent, first
                    os.kill(os.getppid(), self.sent)
                os.kill(os.getpid(), self.sent)


def dying(*steps: int, rank: int = 0) -> list[str]:
    return [
        "+callbacks.die._target_=test_resume.Die",
        f"+callbacks.die.at={list(steps)}".replace(" ", ""),
        f"+callbacks.die.rank={rank}",
    ]


def weights(run: Path, name: str = "last") -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(run / f"checkpoints/{name}.ckpt", weights_only=True)
    return state["state_dict"]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def is_whole(run: Path, whole: Path) -> bool:
    """Whether a run that was interrupted left what the whole one left, bit for bit."""
    with (run / "metrics.csv").open(newline="") as ours, (whole / "metrics.csv").open() as theirs:
        assert list(DictReader(ours)) == list(DictReader(theirs))
    shown, expected = Events(run), Events(whole)
    assert shown.steps("train/loss") == expected.steps("train/loss")
    assert shown.scalars("train/loss") == expected.scalars("train/loss")
    return same(weights(run), weights(whole)) and same(weights(run, "best"), weights(whole, "best"))


@pytest.mark.compares
def test_a_run_that_was_killed_twice_is_one_run(train: Cli, cli: Cli, warm: Cli) -> None:
    """Just after the end of an epoch, and in the middle of the last one."""
    # As many steps as without, the last of which takes in batches of 16 and of 1.
    accumulated = ("data.batch_size=16", "trainer.accumulate_grad_batches=4")
    options = (*RANDOM, *accumulated, "strategy=pipeline")
    whole = train(*options).run
    assert cli("train.py", *TINY, *options, *dying(12, 17, rank=1)).status == 1
    assert cli("train.py", "resume=last").status == 1
    warm("train.py", "resume=last")
    assert len(list(whole.parent.iterdir())) == 2
    (run,) = set(whole.parent.iterdir()) - {whole}
    assert is_whole(run, whole)
    assert len(column(run, "train/loss")) == 2 * EPOCH


class Taught(Classification):
    """A teacher follows the network, as in solo-learn's momentum methods.

    Lightning calls the task's hook after those of callbacks, so a checkpoint that a callback writes
    at once would not have what it does.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.teacher = deepcopy(self.network).requires_grad_(False)

    def on_train_batch_end(self, *_: Any) -> None:
        pairs = zip(self.teacher.parameters(), self.network.parameters(), strict=True)
        for ours, theirs in pairs:
            ours.lerp_(theirs.detach(), 0.3)


@pytest.mark.compares
@pytest.mark.parametrize(
    ("strategy", "sent", "step"),
    [
        # In the last step of an epoch, it waits for the validation; ranks agree a step later.
        ("single", signal.SIGTERM, EPOCH - 1),
        pytest.param("ddp", signal.SIGTERM, EPOCH - 2, marks=pytest.mark.long),
        ("single", signal.SIGTERM, 5),
        ("single", signal.SIGKILL, EPOCH + 6),
    ],
)
def test_a_run_that_a_signal_ended_is_one_run(
    trained: Cli, warm: Cli, start: Start, tmp_path: Path, strategy: str, sent: int, step: int
) -> None:
    taught = ("scheduler=plateau", "task._target_=test_resume.Taught")
    options = (*RANDOM, f"strategy={strategy}", *taught)
    whole = trained(*options).run
    command = start(*TINY, *options, *dying(step), f"+callbacks.die.sent={int(sent)}")
    command.communicate(120)
    assert command.returncode == (-sent if sent == signal.SIGKILL else 128 + sent)
    time.sleep(1)  # TensorBoard orders a run's files by second and process
    warm("train.py", "resume=last")
    (run,) = run_directories(tmp_path)
    assert is_whole(run, whole)


@pytest.mark.long
@pytest.mark.compares
def test_ranks_that_died_are_started_again(train: Cli) -> None:
    options = (*RANDOM, "strategy=ddp")
    whole = train(*options).run
    restarted = train(*options, "launch.max_restarts=2", *dying(5, 17, rank=1))
    assert is_whole(restarted.run, whole)
    assert restarted.metrics["status"] == "finished"
    # What ranks printed before they ended is there, although no rank came to its end.
    printed = (restarted.run / "logs/rank_1.log").read_text()
    for number, step in enumerate((5, 17), start=1):
        assert f"signal 9 in step {step}\n" in printed
        assert f"restart {number} of 2: the ranks continue from last.ckpt\n" in printed


def cosine_from(step: int, steps: int) -> list[float]:
    """The learning rates of a run of so many steps from one of them on."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.01)
    options: Any = {"monitor": "", "mode": "min", "warmup": 0.05, "final": 0.0}
    (factor,) = cosine(optimizer, total_steps=steps, **options)["scheduler"].lr_lambdas
    return [0.01 * factor(each) for each in range(step, steps)]


class Fails(Callback):
    def on_fit_start(self, *_: Any) -> None:
        raise ArithmeticError


def test_what_is_typed_comes_on_top_of_the_run_s_own(train: Cli, warm: Cli, cli: Cli) -> None:
    """And the learning rate continues along the curve of as many steps as there are then."""
    first = train(
        "strategy=single", "optimizer.lr=0.01", "trainer.max_epochs=1", "test=false",
        "callbacks=[checkpoint,lr_monitor]", "callbacks.lr_monitor.logging_interval=step",
    )  # fmt: skip
    # But for what it could not be resumed with.
    for mistake, status in (("model=lenet", 2), ("+callbacks.x._target_=test_resume.Fails", 1)):
        assert cli("train.py", f"resume={first.run}", mistake).status == status
    more = warm("train.py", f"resume={first.run}", "trainer.max_epochs=2", "strategy=ddp")
    assert "changed now: trainer.max_epochs=2 strategy=ddp" in more.out
    assert more.runs == []
    assert first.metrics["strategy"] == "ddp"
    assert len(column(first.run, "train/loss")) == 2 * EPOCH
    longer = column(first.run, "lr-AdamW")[EPOCH:]
    assert longer == pytest.approx(cosine_from(EPOCH, 2 * EPOCH))
    # Six steps an epoch.
    fewer = ("trainer.max_epochs=3", "data.batch_size=128", "strategy=single", "test=true")
    again = warm("train.py", f"resume={first.run}", *fewer)
    assert "resume: saved under ddp on 2, continues under single on 1: the samples st" in again.out
    assert (again.out + again.err).count("LambdaLR continues along the curve of this run") == 1
    rates = column(first.run, "lr-AdamW")[2 * EPOCH :]
    assert rates == pytest.approx(cosine_from(2 * EPOCH, 2 * EPOCH + 6))
    assert "lr: 0.01" in (first.run / "config.yaml").read_text()


def test_a_damaged_checkpoint_is_passed_over(train: Cli, cli: Cli, warm: Cli) -> None:
    # best.ckpt is of the first epoch.
    worst = ("callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=max")
    run = train(*RANDOM, "strategy=single", *worst).run
    last, whole = run / "checkpoints/last.ckpt", weights(run)
    last.write_bytes(last.read_bytes()[:-10])
    resumed = warm("train.py", "resume=last")
    assert "skipped last.ckpt: it is truncated" in resumed.out
    assert same(weights(run), whole)
    for file in (run / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    resumed = cli("train.py", "resume=last")
    assert "from the start" in resumed.out


SGD = (
    "optimizer=sgd", "optimizer.lr=0.02", "scheduler=cosine", "test=false",
    "callbacks=[checkpoint,early_stopping,lr_monitor]", "callbacks.early_stopping.patience=3",
    "callbacks.lr_monitor.logging_interval=step",
)  # fmt: skip


def test_another_learning_rate_and_argument_of_a_callback_are_taken_and_no_other_optimizer(
    train: Cli, refused: Refused
) -> None:
    first = train(*SGD, "trainer.max_epochs=1").run
    resume = f"resume={first}/checkpoints/last.ckpt"
    on = train(*SGD, "optimizer.lr=0.01", "callbacks.early_stopping.patience=7", resume)
    assert "optimizer.lr=0.01 (was 0.02): all learning rates are multiplied by 0.5" in on.out
    assert column(on.run, "lr-SGD") == pytest.approx(cosine_from(EPOCH, 2 * EPOCH))
    states = torch.load(on.run / "checkpoints/last.ckpt", weights_only=True)["callbacks"]
    (early,) = (states[name] for name in states if "EarlyStopping" in name)
    assert early["patience"] == 7
    for change, answer in (
        ("optimizer.weight_decay=0.1", "weight_decay=0.1: the run was started with 0.0, and a res"),
        ("scheduler.warmup=0.5", "scheduler.warmup=0.5: the run was started with 0."),
        ("seed=5", "seed=5: the run was started with 0"),
        ("scheduler=plateau", "plateau: the run was started with onecurve.optim.schedulers."),
    ):
        line = refused("train.py", *TINY, *SGD, change, resume)
        assert answer in line
        assert "init=CHECKPOINT" in line
