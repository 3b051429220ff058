"""What is printed of a run: names as they are, and nothing lost if it cannot be printed."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, Cli
from scripted import scripted
from small_sweep import make_job, spreadsheet

from onecurve.app.run import script
from onecurve.app.run.record import override, text_of
from onecurve.app.sweep.report import write_report

# To rich a style, the end of one that was never begun, and a picture.
NAME = "f[bold]:cat:[/cat]"


def test_a_sweep_says_what_stopped_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    make_job(tmp_path, 1, "seed=1", val_acc=0.5, stopped="early_stopping: val/acc did not improve")
    make_job(tmp_path, 2, "seed=2", val_acc=0.4, stopped="trainer.max_time: 9 s are over")
    make_job(tmp_path, 3, "seed=3", status="interrupted", stopped="stopped by SIGTERM after step 3")
    make_job(tmp_path, 4, f"data.root={NAME}", status="failed", error=f"no file {NAME}")
    write_report(tmp_path)
    shown = capsys.readouterr().out
    rows = [" ".join(line.replace("★ ", "").split()) for line in shown.splitlines()]
    told = ("finished early_stopping", "finished max_time", "interrupted SIGTERM")
    assert all(any(words in row for row in rows) for words in told), rows
    assert shown.count(NAME) == 3
    assert spreadsheet(tmp_path)[0]["stopped"] == "early_stopping: val/acc did not improve"


def test_what_cannot_be_printed_does_not_lose_the_outcome(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(*arguments: Any) -> None:
        raise BrokenPipeError("nobody reads it")

    monkeypatch.setattr(script, "show_training", show)
    outcome = cli("train.py", *TINY, "callbacks=[]", "trainer.max_epochs=1")
    assert outcome.status == 1
    assert "BrokenPipeError: nobody reads it" in outcome.err
    metrics = json.loads((outcome.run / "metrics.json").read_text())
    assert metrics["status"] == "finished"
    assert "test/acc" in metrics


def test_the_printed_command_evaluates_the_best_checkpoint(
    warm: Cli, tmp_path: Path, scripts: Path
) -> None:
    # What Hydra, OmegaConf, a shell and rich would make something else of.
    where = f"runs/it's \"jürgen's\" {NAME}, $HOME a\\b (x)=~"
    trained = warm(
        "train.py", *TINY, override("hydra.run.dir", where), "hydra.job.chdir=true",
        "trainer.max_epochs=1", scripted(f"'val/{NAME}'", 7),
    )  # fmt: skip
    assert trained.out.splitlines()[0] == "starting 1 process ..."
    assert f"val/{NAME}" in trained.out
    program, script, *arguments = shlex.split(trained.out.splitlines()[-1])
    assert (program, script) == ("python", str(scripts / "evaluate.py"))
    assert text_of(arguments[0]) == f"{where}/checkpoints/best.ckpt"
    evaluated = warm("evaluate.py", *arguments, "hydra.job.chdir=true")
    for name in ("test/acc", "test/loss"):
        assert evaluated.metrics[name] == trained.metrics[name]
    assert f"Written to: {evaluated.run.relative_to(tmp_path)}/metrics.json" in evaluated.out
