"""`sweep=optuna`: a study that survives, ends bad trials, and finds what it says."""

import json
import shlex
from collections import Counter
from pathlib import Path

import optuna
import pytest
import yaml
from conftest import STRATEGIES, Cli, Outcome, column, one_of_a_kind
from fake_jobs import fake_jobs
from test_sweeps import SHORT, kill_when_there_is

__all__ = ["fake_jobs"]

SPACE = ("optimizer.lr=tag(log, interval(1e-5, 1e-1))", "data.batch_size=64,128")
SEARCH = ("sweep=optuna", *SHORT, *SPACE, "sweep.pruner.n_startup_trials=2")


def study(sweep: Path) -> optuna.Study:
    return optuna.load_study(study_name="sweep", storage=f"sqlite:///{sweep}/study.db")


def states(sweep: Path) -> Counter[str]:
    return Counter(trial.state.name for trial in study(sweep).trials)


def sweep_of(done: Outcome) -> Path:
    (sweep,) = {run.parent for run in done.runs}
    return sweep


@pytest.mark.long
def test_a_search_that_is_killed_twice_is_the_one_that_is_not(warm: Cli, tmp_path: Path) -> None:
    arguments = (*SEARCH, "trainer.max_epochs=4", "sweep.trials=6")
    for trial in ("02", "04"):
        file = f"sweep/{trial}-*/checkpoints/last.ckpt"
        kill_when_there_is(file, *arguments, "hydra.sweep.dir=sweep", folder=tmp_path)
        assert states(tmp_path / "sweep")["RUNNING"] == 1
    for name in ("sweep", "whole"):
        done = warm("train.py", "-m", *arguments, f"hydra.sweep.dir={name}")
        assert ("resuming a search" in done.out) == (name == "sweep")
    trials, expected = (
        [(trial.params, trial.values, trial.state) for trial in study(tmp_path / name).trials]
        for name in ("sweep", "whole")
    )
    assert len(trials) == 6
    assert trials == expected
    assert states(tmp_path / "sweep")["PRUNED"] >= 1
    assert states(tmp_path / "sweep").keys() <= {"PRUNED", "COMPLETE"}
    assert len(list((tmp_path / "sweep").glob("*/metrics.json"))) == 6


@pytest.mark.parametrize("strategy", one_of_a_kind(["single", "pipeline"], kept=["single"]))
def test_a_bad_trial_is_ended_under_every_strategy(warm: Cli, strategy: str) -> None:
    done = warm(
        "train.py", "-m", "sweep=optuna", *SHORT, *STRATEGIES[strategy],
        "optimizer.lr=1e-2,1e-7", "sweep/sampler=random", "sweep.seed=2", "sweep.trials=2",
        "sweep.pruner.n_startup_trials=1", "sweep.pruner.n_warmup_steps=1",
    )  # fmt: skip
    first, second = study(sweep_of(done)).trials
    assert first.params == {"optimizer.lr": "0.01"}, "the other comes first: another seed"
    told = done.out.partition(f"best: job 1, val/acc {first.value:.6g}\n")[2]
    assert "optimizer.lr=0.01" in shlex.split(told.splitlines()[0])
    assert first.state.name == "COMPLETE"
    assert second.state.name == "PRUNED"
    assert second.intermediate_values == {1: column(done.runs[1], "val/acc")[0]}
    metrics = json.loads((done.runs[1] / "metrics.json").read_text())
    assert metrics["status"] == "pruned"
    assert metrics["global_step"] == 4
    assert "test/acc" not in metrics


@pytest.mark.usefixtures("fake_jobs")
def test_a_space_may_be_written_down(warm: Cli, tmp_path: Path) -> None:
    space = {"optimizer.lr": "interval(1e-3,1e-2)", "seed": "range(1,9)"}
    file = tmp_path / "experiment/mine.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\n" + yaml.safe_dump({"sweep": {"space": space}}))
    done = warm(
        "train.py", "-m", "--config-dir", str(tmp_path), "sweep=optuna", "+experiment=mine",
        *SHORT, "sweep.trials=2", "sweep/sampler=cmaes", "sweep/pruner=hyperband",
    )  # fmt: skip
    trials = study(sweep_of(done)).trials
    assert trials[0].params != trials[1].params
    for trial, run in zip(trials, done.runs, strict=True):
        assert trial.params.keys() == space.keys()
        assert 1e-3 <= trial.params["optimizer.lr"] <= 1e-2
        first, last = column(run, "val/acc")
        assert trial.value == last < first, "the last value counts, not the best"


@pytest.mark.parametrize(
    ("typed", "answer", "such_as"),
    [
        ("sweep.objective=val/acx", "sweep.objective=val/acx: nothing logs", "val/acc"),
        ("monitor=val/loss", "mode=max: a smaller monitor=val/loss is better", "mode=min"),
    ],
)
def test_a_mistaken_metric_ends_the_search_after_one_trial(
    cli: Cli, typed: str, answer: str, such_as: str
) -> None:
    """The first validation of the first trial tells."""
    done = cli("train.py", "-m", *SEARCH, "trainer.max_epochs=1", typed)
    assert done.status == 2
    last = done.err.splitlines()[-1]
    assert last.startswith(f"error: {answer}")
    assert such_as in last
    assert len(done.runs) == 1
