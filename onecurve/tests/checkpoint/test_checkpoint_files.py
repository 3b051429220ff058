"""A checkpoint file is whole or not there, and a reader knows which."""

import hashlib
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from conftest import EPOCH, Cli, Refused
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from several_fits import Small, data, quiet_trainer
from torch import nn

from onecurve import BestAndLast, LocalFiles, Single, read_checkpoint
from onecurve.checkpoint.file import damage, write_checkpoint
from onecurve.errors import UserError

CONTENT = {"weights": torch.arange(100.0), "rates": [0.5, {"a": 2}], "step": 3}


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process may grow above a size: what a full disk or a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_changed_bit_is_read_as_something_else(tmp_path: Path) -> None:
    """Each byte in turn: it is noticed, or torch will not read the file, or nothing changes."""
    write_checkpoint(CONTENT, tmp_path / "a.ckpt")
    whole = (tmp_path / "a.ckpt").read_bytes()
    for position in range(len(whole)):
        content, read = bytearray(whole), None
        content[position] ^= 1 << position % 8
        changed = tmp_path / f"{position}.ckpt"
        changed.write_bytes(content)
        if damage(changed) is None:
            with suppress(Exception):
                read = torch.load(changed, weights_only=True)
        if read is not None:
            torch.testing.assert_close(read, CONTENT, rtol=0, atol=0)
        changed.unlink()


def test_what_is_no_checkpoint_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a.ckpt"
    write_checkpoint(CONTENT, file)
    whole = file.read_bytes()
    for size in (0, 10, -1):
        file.write_bytes(whole[:size])
        assert damage(file) == "it is truncated, or not written by a training run"
    # Two records of one name.
    write_checkpoint({"one": torch.ones(1), "two": torch.zeros(1)}, file)
    file.write_bytes(file.read_bytes().replace(b"data/1", b"data/0"))
    assert damage(file) == "its list of records is damaged"
    assert damage(tmp_path / "b.ckpt") == "No such file or directory"


def test_a_file_of_an_earlier_release_is_read_and_a_newer_one_refused(
    train: Cli, refused: Refused, warm: Cli
) -> None:
    """They ended in a line with their SHA-256, and said nothing of a format."""
    last = train("trainer.max_epochs=1", "test=false").run / "checkpoints/last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    assert checkpoint["format"] == 1
    write_checkpoint(checkpoint | {"format": 2}, last)
    line = refused("train.py", f"resume={last}")
    assert "has format 2, and this release of onecurve reads up to 1" in line
    del checkpoint["format"]
    torch.save(checkpoint, last)
    digest = hashlib.sha256(last.read_bytes()).hexdigest()
    with last.open("ab") as file:
        file.write(f"\ncheckpoint 001 sha256 {digest}\n".encode())
    assert damage(last) is None
    more = warm("train.py", "resume=last", "trainer.max_epochs=2")
    assert "from last.ckpt" in more.out
    assert torch.load(last, weights_only=True)["global_step"] == 2 * EPOCH


@pytest.mark.parametrize(
    ("form", "in_background"), [("file", "false"), ("file", "true"), ("sharded", "false")]
)
def test_a_full_disk_costs_no_checkpoint(
    train: Cli, cli: Cli, warm: Cli, form: str, in_background: str
) -> None:
    run = train("trainer.max_epochs=1", "test=false", f"checkpoint.format={form}").run

    def kept() -> dict[Path, bytes]:
        files = (run / "checkpoints").rglob("*")
        return {file: file.read_bytes() for file in files if file.is_file()}

    before = kept()
    with files_of_at_most(20_000):
        changed = ("trainer.max_epochs=2", f"checkpoint.async={in_background}")
        more = cli("train.py", "resume=last", *changed)
    assert kept() == before
    assert "could not be written" in more.err
    assert more.status == 2, more.err
    assert json.loads((run / "metrics.json").read_text())["status"] == "failed"
    assert "Traceback" not in more.err
    warm("train.py", "resume=last")
    assert read_checkpoint(run / "checkpoints/last.ckpt")["global_step"] == 2 * EPOCH


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    (tmp_path / f".epoch=1.ckpt.{gone}").write_text("half")
    mine = tmp_path / f".other.ckpt.{os.getpid()}"
    mine.write_text("half")
    write_checkpoint(CONTENT, tmp_path / "last.ckpt")
    assert {path.name for path in tmp_path.iterdir()} == {"last.ckpt", mine.name}


def test_another_network_is_refused_and_its_weights_can_be_taken(
    trained: Cli, refused: Refused, warm: Cli
) -> None:
    file = trained("trainer.max_epochs=1", "test=false").run / "checkpoints/last.ckpt"
    other = ("model=mlp", "data.image_size=8", "model.hidden=[512,64]", "callbacks=[]")
    line = refused("train.py", *other, f"resume={file}")
    assert "network.hidden2.weight is (512, 512) there and (64, 512) here" in line
    started = warm("train.py", *other, f"init={file}", "trainer.max_epochs=1")
    assert "init: 3 of 6 weights are from" in started.out
    random = "not in the file, initialized at random: hidden2.weight, hidden2.bias, output.weight"
    assert random in started.out


def trainer(**options: Any) -> Trainer:
    return quiet_trainer(Single(), **{"max_epochs": 1, **options})


def test_an_address_is_no_folder_of_this_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third replaces the second, which is removed; what a run resumes from stays."""
    monkeypatch.chdir(tmp_path)
    for folder, epochs, resume in (
        ("first", 1, None),
        ("first", 3, "memory://runs/first/epoch=0.ckpt"),
        ("other", 4, "memory://runs/first/epoch=2.ckpt"),
    ):
        to = f"memory://runs/{folder}"
        keeps = BestAndLast(to, filename="{epoch}", monitor=None, save_last=False)
        options: Any = {"enable_checkpointing": True, "plugins": [LocalFiles(background=True)]}
        one = trainer(max_epochs=epochs, callbacks=[keeps], **options)
        one.fit(Small(), data(), ckpt_path=resume)
        assert keeps.best_model_path == f"{to}/epoch={epochs - 1}.ckpt"
    files = [f"/runs/{name}.ckpt" for name in ("first/epoch=0", "first/epoch=2", "other/epoch=3")]
    assert fsspec.filesystem("memory").find("/runs") == files
    assert list(tmp_path.iterdir()) == []
    assert read_checkpoint(keeps.best_model_path)["global_step"] == 4 * one.num_training_batches


class NotPlain(BoringModel):
    def __init__(self, activation: nn.Module | None = None, places: Any = (), no: int = 0) -> None:
        super().__init__()
        self.save_hyperparameters()


def test_what_cannot_be_read_again_is_said_when_it_is_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, one, two = tmp_path / "a.ckpt", trainer(), trainer(max_epochs=2)
    one.fit(NotPlain(nn.ReLU(), [1, {"a": np.float64(1)}]))
    for _ in range(2):
        one.save_checkpoint(file)
    said = [line for line in capfd.readouterr().err.splitlines() if "weights_only" in line]
    (line,) = said
    assert "does not read hyper_parameters.activation, hyper_parameters.places again; read" in line
    assert "trainer.fit(..., ckpt_path=FILE, weights_only=False), or leave it out: " in line
    assert line.endswith(": save_hyperparameters(ignore=['activation', 'places'])")
    with pytest.raises(UserError, match=r"holds more than plain data .*weights_only=False"):
        trainer(max_epochs=2).fit(NotPlain(), ckpt_path=file)
    two.fit(NotPlain(), ckpt_path=file, weights_only=False)
    assert two.current_epoch == 2


def test_an_error_is_that_of_a_plain_trainer(tmp_path: Path) -> None:
    for place in (tmp_path / "a.ckpt", "memory://nowhere/a.ckpt"):
        with pytest.raises(FileNotFoundError, match=f"^Checkpoint file not found: {place}"):
            trainer().fit(Small(), data(), ckpt_path=place)
