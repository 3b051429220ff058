"""What is printed of a run: names as they are, and nothing lost if it cannot be printed."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TINY, Cli
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from small_sweep import make_job, spreadsheet
from torch import nn

from onecurve.app.command.resume import expand
from onecurve.app.run import script
from onecurve.app.run.closing import show_metrics, show_training
from onecurve.app.run.record import Invocation, override, text_of
from onecurve.app.sweep.report import write_report
from onecurve.callbacks.model_summary import LayerTable
from onecurve.strategies.tensor.plan import report_plan

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
    report_plan(network, {name: "colwise"}, size=2)
    assert name in capsys.readouterr().out

    sweep = tmp_path / "sweep"
    judged = {"monitor": f"val/{name}"}
    make_job(sweep, 1, f"data.root={name}", config=judged, **{f"val/{name}": 0.4})
    make_job(sweep, 2, "data.root=x", status="failed", error=f"no file {name}")
    write_report(sweep)
    assert capsys.readouterr().out.count(name) == 3


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


# What file names may hold, and what Hydra, OmegaConf or a shell would make something else of.
PATHS = [
    *("plain/best.ckpt", "jürgen", "日本", "p[1]", "[1]", "a(b)", "{a}", "it's", "x y", "a,b"),
    *("k=v", "null", "12", "true", " x ", "${x}", "\\${x}", "$HOME", "a;b", "a#b", "!x", "*", "~"),
    *("-x", 'say "x"', "a\\", "a\\'b", 'b\\"c', "'a'", "`x`", "a\tb", 'it\'s "both"'),
]


def test_a_printed_path_is_the_path_to_a_shell_and_to_hydra(tmp_path: Path) -> None:
    typed = Invocation(tmp_path, "code/train.py")
    for name in PATHS:
        assert typed.short(tmp_path / name) == name
        word = override("checkpoint", name)
        program, script, argument = shlex.split(typed.command("evaluate.py", word))
        assert (program, script, argument) == ("python", "code/evaluate.py", word)
        parsed = OverridesParser.create().parse_override(argument)
        assert OmegaConf.create({"value": parsed.value(), "x": "another"}).value == name
        assert text_of(argument) == name
    # One that is there needs no quotes of Hydra.
    for name in ("jürgen", "p[1]", "it's (x)", "a,b", "k=v"):
        (tmp_path / name).mkdir()
        hydra = SimpleNamespace(config_name="evaluate")
        (expanded,) = expand(hydra, [f"checkpoint={tmp_path / name}"], is_sweep=False)
        assert text_of(expanded) == str(tmp_path / name)


def test_the_printed_command_evaluates_the_best_checkpoint(
    warm: Cli, tmp_path: Path, scripts: Path
) -> None:
    where = "runs/jürgen's [1], (x)"
    options = [override("hydra.run.dir", where), "hydra.job.chdir=true", "trainer.max_epochs=1"]
    trained = warm("train.py", *TINY, *options)
    assert trained.out.splitlines()[0] == "starting 1 process ..."
    program, script, *arguments = shlex.split(trained.out.splitlines()[-1])
    assert (program, script) == ("python", str(scripts / "evaluate.py"))
    assert text_of(arguments[0]) == f"{where}/checkpoints/best.ckpt"
    evaluated = warm("evaluate.py", *arguments, "hydra.job.chdir=true")
    for name in ("test/acc", "test/loss"):
        assert evaluated.metrics[name] == trained.metrics[name]
    assert f"Written to: {evaluated.run.relative_to(tmp_path)}/metrics.json" in evaluated.out


def test_a_sweep_says_what_stopped_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    make_job(tmp_path, 1, "seed=1", val_acc=0.5, stopped="early_stopping: val/acc did not improve")
    make_job(tmp_path, 2, "seed=2", val_acc=0.4, stopped="trainer.max_time: 9 s are over")
    make_job(tmp_path, 3, "seed=3", status="interrupted", stopped="stopped by SIGTERM after step 3")
    make_job(tmp_path, 4, "seed=4", val_acc=0.3)
    write_report(tmp_path)
    lines = capsys.readouterr().out.replace("★ ", "").splitlines()
    rows = [" ".join(line.split()) for line in lines]
    shown = ("finished early_stopping", "finished max_time", "interrupted SIGTERM", "finished")
    for number, words in enumerate(shown, start=1):
        assert any(row.startswith(f"{number} {number} {words}") for row in rows), rows
    assert spreadsheet(tmp_path)[0]["stopped"] == "early_stopping: val/acc did not improve"
