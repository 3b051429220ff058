"""Mistakes about this project's files get one line, and leave nothing behind."""

from pathlib import Path

import pytest
from conftest import shipped
from onecurve.testing.runs import Cli
from small_data import MISTAKES, write_broken

# Overrides, and what the error line must contain.
GENERAL = {
    "optimizer=adamw optimizer.betas=[2,0.9]": "optimizer.betas=[2,0.9]: must be a list, each",
    "optimizer.capturable=true optimizer=adamw trainer.accelerator=cpu": "capturable=false",
    "scheduler=step scheduler.step_size=0": "scheduler.step_size=0: must be a whole number from 1",
    "+optimizer.momentun=0.1 optimizer=sgd": "optimizer.momentun: torch.optim.SGD has no such",
    "optimizer.lr_scale.bakbone=0.1": "did you mean optimizer.lr_scale.backbone",  # by Hydra
    "optimizer.lr_scale.head=-1": "optimizer.lr_scale.head=-1: must be a factor",
    "scheduler=one_cycle trainer.max_epochs=-1": "scheduler=one_cycle: needs the length of the run",
    "scheduler=cosine trainer.max_epochs=-1": "trainer.max_steps, or use scheduler=none",
    "scheduler.warmup=5": "scheduler.warmup=5: must be a number from 0 to 1",
}
ALL = GENERAL | MISTAKES


def with_its_choices(typed: str) -> object:
    """Skip it if the files that it names do not exist."""
    files = [word.replace("=", "/") for word in typed.split() if "." not in word]
    return pytest.param(typed, marks=shipped(*files))


@pytest.mark.parametrize("typed", list(map(with_its_choices, ALL)))
def test_a_mistake_gets_one_line_and_leaves_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    write_broken(tmp_path)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path.with_name(f"{tmp_path.name}-torch")))
    # A proxy that does not exist: no network on any machine.
    proxy = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9") | {"no_proxy": ""}
    for variable in (*proxy, *map(str.upper, proxy)):
        monkeypatch.setenv(variable, proxy[variable.lower()])
    before, outcome = set(tmp_path.rglob("*")), cli("train.py", *typed.split())
    assert outcome.status == (1 if "did you mean" in ALL[typed] else 2), outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert ALL[typed] in outcome.err
    assert set(tmp_path.rglob("*")) == before
