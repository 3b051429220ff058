"""What is printed of a run: names as they are, and nothing lost if it cannot be printed."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, Cli
from scripted import scripted

from onecurve.app.run import script
from onecurve.app.run.record import override, text_of

# To rich a style, the end of one that was never begun, and a picture.
NAME = "f[bold]:cat:[/cat]"


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
