"""Where metrics go besides metrics.csv."""

import json
import socket
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import EPOCH, Cli, Refused, column
from events import Events
from test_checkpoint_files import files_of_at_most

from onecurve.app.loggers.buffered import BufferedCSVLogger


def test_tensorboard_has_the_test_of_a_run_that_trains_no_step(train: Cli) -> None:
    run = train("logger=[csv,tensorboard]", "trainer.limit_train_batches=0").run
    events = Events(run)
    assert "test/acc" in events.tags["scalars"]
    assert events.hparams()


@pytest.mark.parametrize("logger", ["tensorboard", "[]", "csv ~logger.csv"])
def test_metrics_csv_is_written_whatever_the_loggers(
    train: Cli, monkeypatch: pytest.MonkeyPatch, logger: str
) -> None:
    """Nothing of W&B appears where it is not chosen, and no checkpoint without a callback."""

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"a connection was opened: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    typed = f"logger={logger} trainer.max_epochs=1 test=false callbacks=[]"
    outcome = train(*typed.split())
    run = outcome.run
    assert "wandb" not in outcome.out + outcome.err
    assert not [*run.glob("wandb*"), *run.glob("checkpoints")]
    assert len(column(run, "train/loss")) == EPOCH
    assert (run / "tensorboard").exists() == (logger == "tensorboard")


def test_rows_wait_for_room_on_the_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = BufferedCSVLogger(str(tmp_path), name="", version="", flush_logs_every_n_steps=1)
    logger.log_metrics({"a": 0.5}, step=0)
    logger.save()
    file = tmp_path / "metrics.csv"
    before = file.read_bytes()
    with files_of_at_most(len(before) + 2):
        for step, name in ((1, "a"), (2, "b")):
            logger.log_metrics({name: 1.5}, step=step)
            logger.save()
            assert file.read_bytes() == before
    assert capsys.readouterr().err.count("metrics.csv could not be written") == 1
    logger.save()
    assert [column(tmp_path, name) for name in ("step", "a", "b")] == [[0, 1, 2], [0.5, 1.5], [1.5]]


def test_wandb_needs_no_account_and_a_run_that_goes_on_is_the_same_for_it(
    train: Cli, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    first = train("logger=[csv,wandb]", "test=false", "trainer.max_epochs=1").run
    assert not list(tmp_path.glob("wandb"))
    assert cli("train.py", "resume=last", "trainer.max_epochs=2").status == 0
    # Behind the id stands a number if two began in one second; another run has another id:
    # test_every_job_of_a_sweep_is_a_row_and_a_run_of_its_own.
    one, two = (path.name.split("-")[3] for path in first.glob("wandb/offline-run-*"))
    assert one == two


@pytest.mark.long
def test_mlflow_has_a_run_in_its_database(train: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracking = pytest.importorskip("mlflow.tracking")
    run = train("logger=[csv,mlflow]", "test=false", "trainer.max_epochs=1").run
    client = tracking.MlflowClient(f"sqlite:///{run.parents[1]}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name != 'Default'")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["trainer/max_epochs"] == "1"
    for name in ("train/loss", "val/acc"):
        history = client.get_metric_history(found.info.run_id, name)
        assert [each.value for each in history] == column(run, name)
    assert not list(run.rglob("mlruns"))


def test_a_logger_without_its_package_is_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    needs = "logger=mlflow: needs mlflow; type `uv pip install -e '.[mlflow]'`"
    assert needs in refused("train.py", "logger=mlflow")


@pytest.mark.long  # as W&B and MLflow
def test_comet_has_an_experiment_in_an_archive(train: Cli) -> None:
    run = train("logger=[csv,comet]", "strategy=ddp", "test=false", "trainer.max_epochs=1").run
    (archive,) = (run / "comet").glob("*.zip")
    with zipfile.ZipFile(archive) as opened:
        messages = [json.loads(line) for line in opened.read("messages.json").splitlines()]
    logged = [each["payload"]["metric"] for each in messages if each["type"] == "metric_msg"]
    for name in ("train/loss", "val/acc"):
        values = [each["metricValue"] for each in logged if each["metricName"] == name]
        assert values == column(run, name)


def test_tensorboard_has_the_curves_of_a_run_by_its_name(train: Cli, warm: Cli) -> None:
    """Strategy and overrides; the folder stays when it is resumed under another strategy."""
    both = ("logger=[csv,tensorboard]", "callbacks=[checkpoint,tensorboard]")
    run = train(*both, "optimizer.lr=0.002", "trainer.max_epochs=1").run
    (folder,) = (run / "tensorboard").iterdir()
    assert folder.name.startswith("strategy=single,")
    assert "optimizer.lr=0.002" in folder.name
    warm("train.py", "resume=last", "strategy=ddp", "trainer.max_epochs=2")
    events = Events(run)
    assert events.folder == folder
    assert len(events.scalars("train/loss")) == 2 * EPOCH
    for name in ("train/loss", "val/loss", "val/acc", "test/acc"):
        assert events.scalars(name) == pytest.approx(column(run, name))
    assert events.hparams()["optimizer.lr"] == 0.002
    # Each display once.
    assert events.steps("images") == [0]
    assert events.steps("gradient_norm") == [0, 10, 20]
