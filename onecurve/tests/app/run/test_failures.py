"""A run that fails says which rank failed and why, once, and leaves no process behind."""

import json
import logging
import multiprocessing
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, Cli, Outcome, one_of_a_kind
from lightning.pytorch import Callback, Trainer
from processes import Command, nothing_stays_of
from torch.utils.data import DataLoader
from warm_ranks import RANKS

from onecurve.batch.workers import keep_workers
from onecurve.machine import SIGNALS


class FailOnRank(Callback):
    """Breaks one rank in its third training step, or in the second batch of validation."""

    def __init__(self, rank: int, how: str = "raise", when: str = "train") -> None:
        self.rank = rank
        self.how = how
        self.when = when

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if self.when == "train" and trainer.global_step == 3:
            self.fail(trainer)

    def on_validation_batch_end(self, trainer: Trainer, *rest: Any) -> None:
        if self.when == "validation" and rest[3] == 1:
            self.fail(trainer)

    def fail(self, trainer: Trainer) -> None:
        if trainer.global_rank == self.rank:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError(f"{self.when} failed")


class CutOff(Callback):
    """Ctrl-C where a library then fails at cleaning up."""

    def __init__(self) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise AttributeError("'NoneType' object has no attribute 'clear'")


def ranks() -> list[str]:
    """Rank processes that still live: children of the forkserver, but for those that are to."""
    warm = {str(process.pid) for each in RANKS.values() for process in each.processes}
    listing = ["ps", "-eo", "pid=,ppid=,stat=,args="]
    done = subprocess.run(listing, capture_output=True, text=True, check=True)
    rows = [line.split(None, 3) for line in done.stdout.splitlines()]
    servers = {row[0] for row in rows if row[1] == str(os.getpid()) and "forkserver" in row[3]}
    rows = [row for row in rows if row[0] not in warm and row[2][0] != "Z"]
    return [args for _, parent, _, args in rows if parent in servers]


@pytest.fixture
def broken(cli: Cli) -> Cli:
    def run(strategy: str, rank: int, how: str = "raise", when: str = "train") -> Outcome:
        return cli(
            "train.py", *TINY, f"strategy={strategy}",
            "+callbacks.fail._target_=test_failures.FailOnRank", f"+callbacks.fail.when={when}",
            f"+callbacks.fail.rank={rank}", f"+callbacks.fail.how={how}",
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    ("strategy", "rank", "when"),
    [
        ("single", 0, "train"),
        ("ddp", 1, "validation"),
        pytest.param("pipeline", 0, "train", marks=pytest.mark.long),
    ],
)
def test_an_exception_is_shown_once(broken: Cli, strategy: str, rank: int, when: str) -> None:
    outcome = broken(strategy, rank, when=when)
    assert outcome.status == 1
    assert outcome.err.count(f"ArithmeticError: {when} failed") == 1
    assert f"on_{when}_batch_end" in outcome.err
    assert "lightning/pytorch/loops" not in outcome.err  # only below the project's own frames
    if strategy != "single":
        assert f"rank {rank} failed" in outcome.err
        assert "elastic" not in outcome.err
    log = (outcome.run / f"logs/rank_{rank}.log").read_text()
    assert f"ArithmeticError: {when} failed" in log
    assert "lightning/pytorch/loops" in log
    expected = {"status": "failed", "error": f"ArithmeticError: {when} failed"}
    assert outcome.metrics == expected
    assert ranks() == []


@pytest.mark.parametrize("rank", one_of_a_kind([0, 1], kept=[1]))
def test_a_killed_rank_ends_the_others(broken: Cli, rank: int) -> None:
    started = time.monotonic()
    outcome = broken("pipeline", rank, "kill")
    assert outcome.status == 1
    assert f"rank {rank} was ended by signal SIGKILL" in outcome.err
    assert time.monotonic() - started < 60
    assert ranks() == []
    # Its traceback, as of a store that is gone before its agent, would stand beside ours.
    assert not logging.getLogger("torch.distributed.elastic.agent.server.api").isEnabledFor(
        logging.ERROR
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "sent", "workers"),
    [
        ("single", signal.SIGUSR1, 2),
        ("ddp", signal.SIGTERM, 2),
        pytest.param("single", signal.SIGINT, 0, marks=pytest.mark.long),
        pytest.param("ddp", signal.SIGUSR2, 0, marks=pytest.mark.long),
        pytest.param("pipeline", signal.SIGINT, 2, marks=pytest.mark.long),
    ],
)
def test_a_signal_to_every_process_saves_and_ends_them(
    tmp_path: Path, strategy: str, sent: signal.Signals, workers: int
) -> None:
    """So go Ctrl-C in a terminal, and the signals of Slurm."""
    process = in_training(tmp_path, strategy, workers)
    os.killpg(process.pid, sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + sent
    assert err.splitlines()[-1].startswith(f"stopped by {sent.name} after step ")
    assert "Traceback" not in err
    assert len(list(tmp_path.glob("runs/*/*/checkpoints/last.ckpt"))) == 1
    (metrics,) = tmp_path.glob("runs/*/*/metrics.json")
    why = err.splitlines()[-1]
    assert json.loads(metrics.read_text()) == {"status": "interrupted", "stopped": why}
    assert nothing_stays_of(process.pid)


def test_ranks_end_with_the_command_that_is_killed(tmp_path: Path) -> None:
    process = in_training(tmp_path, "ddp", workers=2)
    process.kill()
    process.communicate(timeout=60)
    assert nothing_stays_of(process.pid)


def test_a_worker_that_still_imports_leaves_signals_to_its_rank() -> None:
    others = multiprocessing.active_children()
    loader = DataLoader([1, 2], num_workers=1, multiprocessing_context="spawn")  # type: ignore[arg-type]
    keep_workers(loader)
    batches = iter(loader)
    (worker,) = set(multiprocessing.active_children()) - {*others}
    for number in SIGNALS:
        subprocess.run(["kill", f"-{int(number)}", str(worker.pid)], check=True)
    assert torch.cat(list(batches)).tolist() == [1, 2]
    # Its rank may end it.
    batches = iter(loader)
    (worker,) = set(multiprocessing.active_children()) - {*others}
    worker.terminate()
    worker.join(60)
    assert worker.exitcode == 0


def in_training(folder: Path, strategy: str, workers: int) -> Command:
    """A command that has begun to train, in a session of its own."""
    slow = ("callbacks=[progress]", "trainer.max_epochs=100000", f"data.num_workers={workers}")
    process = Command(folder, "train.py", *TINY, *slow, f"strategy={strategy}")
    process.wait_for_line("epoch 1/")
    return process


@pytest.mark.parametrize("sweep", [(), ("-m", "seed=1,2")], ids=["run", "sweep"])
def test_what_fails_after_ctrl_c_is_no_failure(cli: Cli, sweep: tuple[str, ...]) -> None:
    outcome = cli("train.py", *sweep, *TINY, "+callbacks.cut._target_=test_failures.CutOff")
    assert outcome.status == 130
    goes_on = "; the same command resumes the sweep" if sweep else ""
    assert outcome.err == f"stopped by Ctrl-C{goes_on}\n"
    assert [json.loads((run / "metrics.json").read_text()) for run in outcome.runs] == [
        {"status": "interrupted", "stopped": "stopped by Ctrl-C"}
    ]
