"""Mistakes about a project's files get one line, and leave nothing behind."""

from pathlib import Path

import pytest
from conftest import STARTER
from mistakes import MISTAKES, write_broken

from onecurve.testing.runs import Cli

GENERAL = {
    "scheduler=step scheduler.step_size=0": "scheduler.step_size=0: must be a whole number from 1",
    "+optimizer.momentun=0.1 optimizer=sgd": "optimizer.momentun: torch.optim.SGD has no such",
    "optimizer.lr_scale.bakbone=0.1": "did you mean optimizer.lr_scale.backbone",  # by Hydra
    "scheduler=one_cycle trainer.max_epochs=-1": "scheduler=one_cycle: needs the length of the run",
}
ALL = GENERAL | MISTAKES[STARTER]


@pytest.mark.parametrize("typed", ALL)
def test_a_mistake_gets_one_line_and_leaves_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    write_broken(tmp_path, STARTER)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path.with_name(f"{tmp_path.name}-torch")))
    # A proxy that does not exist: no network on any machine.
    proxy = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9") | {"no_proxy": ""}
    for variable in (*proxy, *map(str.upper, proxy)):
        monkeypatch.setenv(variable, proxy[variable.lower()])
    before, outcome = set(tmp_path.rglob("*")), cli("train.py", *typed.split())
    assert outcome.status == (1 if "did you mean optimizer" in ALL[typed] else 2), outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert ALL[typed] in outcome.err
    assert set(tmp_path.rglob("*")) == before
