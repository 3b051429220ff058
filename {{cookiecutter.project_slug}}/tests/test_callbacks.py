"""What the display of a run shows, in a terminal and in a file."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, TINY, Cli


def test_a_file_gets_a_line_an_epoch(train: Cli) -> None:
    out = train("callbacks=[progress]").out
    lines = [line for line in out.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 2
    assert re.match(
        r"epoch 2/2  step 42  train/loss [\d.]+  val/loss [\d.]+  val/acc [\d.]+  [\d,]+ samples/s",
        lines[1],
    )
    assert "\x1b[" not in out


def test_a_long_epoch_gets_lines_in_between(train: Cli) -> None:
    out = train("callbacks=[progress]", "callbacks.progress.seconds_between_lines=0").out
    assert len([line for line in out.splitlines() if line.startswith("epoch 1/2")]) > 10


@pytest.mark.slow
def test_one_rank_speaks(tmp_path: Path) -> None:
    arguments = [*TINY, "callbacks=[progress,model_summary]", "strategy=ddp"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len([line for line in done.stdout.splitlines() if line.startswith("epoch ")]) == 2
    assert done.stdout.count("of them trainable") == 1
    assert done.stdout.count("Training finished") == 1
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_a_terminal_gets_a_bar(tmp_path: Path, strategy: str) -> None:
    """80 columns, as a person sees them."""
    ours, theirs = pty.openpty()
    arguments = [*TINY, "callbacks=[progress]", f"strategy={strategy}"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=tmp_path,
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not shown:
            break
    assert process.wait(timeout=60) == 0, shown.decode()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "Epoch 1/1" in text
    speeds = re.findall(r"samples/s:\s+([\d,.]+)", text)
    assert max(float(speed.replace(",", "")) for speed in speeds) > 0
    assert "train/loss" in text
    assert "Training finished" in text
    assert "v_num" not in text


def test_early_stopping_stops(train: Cli) -> None:
    outcome = train(
        "callbacks=[early_stopping]", "callbacks.early_stopping.patience=1",
        "callbacks.early_stopping.min_delta=2", "trainer.max_epochs=9",
    )  # fmt: skip
    assert outcome.metrics["global_step"] == 2 * 21


@pytest.mark.parametrize(
    "options",
    [
        ("callbacks=[checkpoint]",),
        ("callbacks=[early_stopping]", "strategy=ddp"),
        ("callbacks=[]", "scheduler=plateau"),
    ],
)
def test_a_metric_that_nothing_logs_is_said_in_one_line(cli: Cli, options: tuple[str, ...]) -> None:
    outcome = cli("train.py", *TINY, "monitor=val/accuracy", *options)
    assert outcome.status == 2
    assert "Traceback" not in outcome.err
    assert outcome.err.splitlines()[-1] == (
        "error: monitor=val/accuracy: nothing logs a metric of that name; this task logs "
        "train/loss, val/acc, val/loss; such as monitor=val/acc"
    )
