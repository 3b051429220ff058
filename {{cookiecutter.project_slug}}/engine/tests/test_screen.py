"""What is printed of a run: names as they are, and nothing lost if it cannot be printed."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, Cli
from small_sweep import make_job
from torch import nn

from onecurve.callbacks.model_summary import LayerTable
from onecurve.run import fit
from onecurve.run.summary import show_metrics, show_training
from onecurve.strategies.tensor.report import report_plan
from onecurve.sweep.report.write import write

# To rich a style, the end of one that was never begun, and a picture.
NAMES = ("f[bold]", "f[/cat]", "f:cat:")


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Of metrics, paths, layers, overrides, and in the reason why a job failed."""
    metrics = {f"val/{name}": 0.5}
    facts = {"strategy": "single", "world_size": 1, "global_step": 4, "seconds": 1.0}
    facts |= {"samples_per_second": 8.0, name: 3.0}
    show_training(metrics, facts, tmp_path / name, str(tmp_path / name / "best.ckpt"))
    assert capsys.readouterr().out.count(name) == 4
    show_metrics(metrics, tmp_path / name)
    assert capsys.readouterr().out.count(name) == 2

    columns = [("Name", [name]), ("Type", [name]), ("Params", ["1"])]
    LayerTable.summarize(columns, 1, 1, 0.1)
    assert capsys.readouterr().out.count(name) == 2
    network: Any = nn.Sequential()
    network.add_module(name, nn.Linear(2, 2))
    report_plan(network, {name: "column"}, size=2, sequence=False)
    assert name in capsys.readouterr().out

    sweep = tmp_path / "sweep"
    judged = {"monitor": f"val/{name}"}
    make_job(sweep, 1, f"data.root={name}", config=judged, **{f"val/{name}": 0.4})
    make_job(sweep, 2, "data.root=x", status="failed", error=f"no file {name}")
    write([sweep], sweep)
    assert capsys.readouterr().out.count(name) == 3


def test_what_cannot_be_printed_does_not_lose_the_outcome(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(*arguments: Any) -> None:
        raise BrokenPipeError("nobody reads it")

    monkeypatch.setattr(fit, "show_training", show)
    outcome = cli("train.py", *TINY, "callbacks=[]", "trainer.max_epochs=1")
    assert outcome.status == 1
    assert "BrokenPipeError: nobody reads it" in outcome.err
    metrics = json.loads((outcome.run / "metrics.json").read_text())
    assert metrics["status"] == "finished"
    assert "test/acc" in metrics
