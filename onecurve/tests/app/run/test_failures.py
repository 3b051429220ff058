"""A run that fails says which rank failed and why, once, and leaves no process behind."""

import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, Cli, Outcome, one_of_a_kind
from lightning.pytorch import Callback, Trainer
from processes import Command, nothing_stays_of
from warm_ranks import RANKS


class FailOnRank(Callback):
    """Breaks one rank after a training step, or in the second batch of validation."""

    def __init__(self, rank: int, how: str = "raise", when: str = "train", step: int = 3) -> None:
        self.rank, self.how, self.when, self.step = rank, how, when, step

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if self.when == "train" and trainer.global_step == self.step:
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


def broken(cli: Cli, rank: int, *typed: str) -> Outcome:
    own = ("+callbacks.fail._target_=test_failures.FailOnRank", f"+callbacks.fail.rank={rank}")
    outcome = cli("train.py", *TINY, *own, *typed)
    assert outcome.status == 1
    assert ranks() == []
    return outcome


@pytest.mark.parametrize(
    ("strategy", "rank", "when"), [("single", 0, "train"), ("ddp", 1, "validation")]
)
def test_an_exception_is_shown_once(cli: Cli, strategy: str, rank: int, when: str) -> None:
    outcome = broken(cli, rank, f"strategy={strategy}", f"+callbacks.fail.when={when}")
    error = f"ArithmeticError: {when} failed"
    assert outcome.err.count(error) == 1
    assert f"on_{when}_batch_end" in outcome.err
    assert "lightning/pytorch/loops" not in outcome.err  # only below the project's own frames
    if strategy != "single":
        assert f"rank {rank} failed" in outcome.err
        assert "elastic" not in outcome.err
    log = (outcome.run / f"logs/rank_{rank}.log").read_text()
    assert error in log
    assert "lightning/pytorch/loops" in log
    assert outcome.metrics == {"status": "failed", "error": error}


def test_a_killed_rank_ends_the_others(cli: Cli) -> None:
    started = time.monotonic()
    outcome = broken(cli, 1, "strategy=pipeline", "+callbacks.fail.how=kill")
    assert "rank 1 was ended by signal SIGKILL" in outcome.err
    assert time.monotonic() - started < 60
    # Its traceback, as of a store that is gone before its agent, would stand beside ours.
    agent = logging.getLogger("torch.distributed.elastic.agent.server.api")
    assert not agent.isEnabledFor(logging.ERROR)


SENT = [("single", signal.SIGUSR1), ("ddp", signal.SIGTERM), ("pipeline", signal.SIGINT)]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "sent"), one_of_a_kind(SENT, kept=SENT[:2]))
def test_a_signal_to_every_process_saves_and_ends_them(
    start: Callable[..., Command], tmp_path: Path, strategy: str, sent: signal.Signals
) -> None:
    """So go Ctrl-C in a terminal, and the signals of Slurm."""
    slow = ("callbacks=[progress]", "trainer.max_epochs=100000", "data.num_workers=2")
    process = start(*TINY, *slow, f"strategy={strategy}")
    process.wait_for_line("epoch 1/")
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


@pytest.mark.parametrize("sweep", [(), ("-m", "seed=1,2")], ids=["run", "sweep"])
def test_what_fails_after_ctrl_c_is_no_failure(cli: Cli, sweep: tuple[str, ...]) -> None:
    outcome = cli("train.py", *sweep, *TINY, "+callbacks.cut._target_=test_failures.CutOff")
    assert outcome.status == 130
    goes_on = "; the same command resumes the sweep" if sweep else ""
    assert outcome.err == f"stopped by Ctrl-C{goes_on}\n"
    assert [json.loads((run / "metrics.json").read_text()) for run in outcome.runs] == [
        {"status": "interrupted", "stopped": "stopped by Ctrl-C"}
    ]
