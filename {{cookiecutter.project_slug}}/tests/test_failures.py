"""A run that fails says which rank failed and why, once, and leaves no process behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, TINY, Cli, Outcome
from lightning.pytorch import Callback, LightningModule, Trainer


class FailOnRank(Callback):
    """Breaks one rank in its third step."""

    def __init__(self, rank: int, how: str = "raise") -> None:
        self.rank = rank
        self.how = how

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *rest: object
    ) -> None:
        if trainer.global_rank == self.rank and trainer.global_step == 3:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("the third step failed")


def ranks() -> list[str]:
    """Rank processes of this test run that still live: children of the forkserver."""
    listing = ["ps", "-eo", "pid=,ppid=,stat=,args="]
    done = subprocess.run(listing, capture_output=True, text=True, check=True)
    rows = [line.split(None, 3) for line in done.stdout.splitlines()]
    servers = {
        pid for pid, parent, _, args in rows if parent == str(os.getpid()) and "forkserver" in args
    }
    return [args for _, parent, state, args in rows if parent in servers and state[0] != "Z"]


@pytest.fixture
def broken(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def run(strategy: str, rank: int, how: str = "raise") -> Outcome:
        return cli(
            "train.py", *TINY, f"strategy={strategy}",
            "+callbacks.fail._target_=test_failures.FailOnRank",
            f"+callbacks.fail.rank={rank}", f"+callbacks.fail.how={how}",
        )  # fmt: skip

    return run


@pytest.mark.parametrize(("strategy", "rank"), [("single", 0), ("ddp", 0), ("ddp", 1)])
def test_an_exception_is_shown_once(broken: Cli, strategy: str, rank: int) -> None:
    outcome = broken(strategy, rank)
    assert outcome.status == 1
    assert outcome.err.count("ArithmeticError: the third step failed") == 1
    assert "on_train_batch_end" in outcome.err
    if strategy == "ddp":
        assert f"rank {rank} failed" in outcome.err
    log = (outcome.run / f"logs/rank_{rank}.log").read_text()
    assert "ArithmeticError: the third step failed" in log
    assert outcome.metrics == {"status": "failed"}
    assert ranks() == []


def test_a_killed_rank_ends_the_others(broken: Cli) -> None:
    started = time.monotonic()
    outcome = broken("ddp", 1, "kill")
    assert outcome.status == 1
    assert "rank 1 was ended by signal SIGKILL" in outcome.err
    assert time.monotonic() - started < 60
    assert ranks() == []


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["single", "ddp"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=lambda sent: sent.name)
def test_a_signal_ends_everything(tmp_path: Path, strategy: str, sent: signal.Signals) -> None:
    """Ctrl-C goes to the whole process group, as from a terminal; SIGTERM to the command alone."""
    process = subprocess.Popen(
        [
            sys.executable, str(ROOT / "train.py"), *TINY,
            "callbacks=[progress]", "trainer.max_epochs=100000", f"strategy={strategy}",
        ],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    while not process.stdout.readline().startswith("epoch 1/"):
        assert process.poll() is None
    if sent == signal.SIGINT:
        os.killpg(process.pid, sent)
    else:
        process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + sent
    assert err.splitlines()[-1] == f"stopped by {sent.name}"
    assert "Traceback" not in err
    (metrics,) = tmp_path.glob("runs/*/*/metrics.json")
    assert json.loads(metrics.read_text()) == {"status": "interrupted"}
    deadline = time.monotonic() + 20
    while session_members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert session_members(process.pid) == []


def session_members(session: int) -> list[str]:
    """Commands that still run in a session."""
    done = subprocess.run(
        ["ps", "-s", str(session), "-o", "args="], capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()
