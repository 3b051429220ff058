"""Nothing that a run opens is open to strangers, and nothing secret stays behind."""

from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, Cli, one_of_a_kind
from processes import Command, end, listens
from small.digits import Digits

from onecurve.app.run.stored import typed_secrets

READ = "read-from-the-environment"
PRIVATE = (
    *("data._target_=test_secrets_and_ports.Private", "+data.login=${oc.env:LOGIN}"),
    *("+data.url=https://${data.login}@host", "trainer.max_epochs=1", "test=false"),
)
SLOW = ("callbacks=[progress]", "trainer.max_epochs=100000", "strategy=ddp")


class Private(Digits):
    """Data behind a key, which keeps its arguments as Lightning does."""

    def __init__(self, login: str, url: str, **options: Any) -> None:
        super().__init__(**options)
        assert (login, url) == (READ, f"https://{READ}@host")
        self.save_hyperparameters()


def files_with(secret: str, folder: Path) -> list[str]:
    """The files that hold a text; those in a checkpoint are not compressed."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(str(path) for path in files if secret.encode() in path.read_bytes())


def test_no_file_of_a_run_or_a_sweep_holds_a_secret(
    train: Cli, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGIN", READ)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    few = ["callbacks.tensorboard.images=0", "callbacks.tensorboard.histograms=false"]
    run = train(*PRIVATE, "callbacks=[checkpoint,tensorboard]", "logger=[csv,wandb]", *few).run
    assert files_with(READ, tmp_path / "runs") == []
    config = (run / "config.yaml").read_text()
    assert "login: ${oc.env:LOGIN}" in config
    assert "url: https://${data.login}@host" in config
    for typed in (("resume=last", "trainer.max_epochs=2"), ("-m", *TINY, *PRIVATE, "seed=1")):
        more = cli("train.py", *typed)
        assert more.status == 0, more.err
        assert files_with(READ, tmp_path / "runs") == []


def test_a_secret_that_is_typed_is_stored_and_a_line_says_so(cli: Cli) -> None:
    outcome = cli("train.py", *TINY, "trainer.fast_dev_run=true", "+paths.api_key=sk-0123")
    assert outcome.status == 0, outcome.err
    assert "paths.api_key: is stored in the run's files as it was typed" in outcome.err
    assert "'paths.api_key=${oc.env:NAME}'" in outcome.err


def test_what_is_named_like_a_secret() -> None:
    secret = ("data.api_key", "hf_token", "x.password", "clientSecret", "key", "auth.credentials")
    assert all(typed_secrets([f"+{key}=text"]) for key in secret)
    other = ("data.sort_key", "tokenizer", "pad_token", "launch.secret_file", "monitor", "keys")
    assert typed_secrets([*(f"{key}=text" for key in other), "db.password=${oc.env:X}"]) is None


@pytest.mark.parametrize("devices", one_of_a_kind([2, 1], kept=[2]))
def test_one_node_listens_to_itself_alone(tmp_path: Path, devices: int) -> None:
    process = Command(tmp_path, "train.py", *TINY, *SLOW, f"trainer.devices={devices}")
    try:
        process.wait_for_line("epoch 1/")
        assert listens(process.pid) == {"127.0.0.1"}
    finally:
        end(process)
