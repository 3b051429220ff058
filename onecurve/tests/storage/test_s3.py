"""A run that is killed leaves complete checkpoints in a bucket, from which another machine resumes.

The bucket is that of moto, which answers as Amazon's S3 does; `make test-storage` installs it.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
from conftest import EPOCH, FLOAT64, ROUNDING, TINY, Cli, Refused, column, largest_difference
from lightning.pytorch import Callback
from moto.server import ThreadedMotoServer
from processes import Command

SHORT = ("test=false", FLOAT64, "callbacks.checkpoint.last_every_n_steps=4")
DIRPATH = "callbacks.checkpoint.dirpath"


class DieInUpload(Callback):
    """Kills its process in the middle of the n-th upload of a checkpoint."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def on_fit_start(self, *_: object) -> None:
        send = s3fs.S3FileSystem._call_s3

        async def sent(files: Any, method: str, *arguments: Any, **options: Any) -> Any:
            key = str(options.get("Key", ""))
            if method in ("put_object", "upload_part") and key.endswith(".ckpt"):
                self.left -= 1
                if not self.left:
                    os.kill(os.getpid(), signal.SIGKILL)
            return await send(files, method, *arguments, **options)

        s3fs.S3FileSystem._call_s3 = sent


def names(bucket: Any) -> set[str]:
    return {file.rpartition("/")[2] for file in bucket.find("runs/mine")}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of S3, for this process and those that it starts."""
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A file system with an empty bucket that is called as the test's folder is."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    said = {"AWS_ENDPOINT_URL": server, "AWS_DEFAULT_REGION": "us-east-1"}
    said |= {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}
    said |= {"AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1"}
    for name, value in (said | {"XDG_CACHE_HOME": str(tmp_path / "cache")}).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem(use_listings_cache=False)
    files.mkdir("runs")
    yield files
    files.rm("runs", recursive=True)


@pytest.mark.compares
@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_a_killed_run_continues_elsewhere(
    bucket: Any, train: Cli, trained: Cli, cli: Cli, tmp_path: Path, strategy: str
) -> None:
    how = (f"strategy={strategy}", f"{DIRPATH}=s3://runs/mine")
    dies = ["+callbacks.die._target_=storage.test_s3.DieInUpload", "+callbacks.die.nth=3"]
    machine = tmp_path / "machine"
    machine.mkdir()
    killed = Command(machine, "train.py", *TINY, *SHORT, *how, *dies)
    out, err = killed.communicate(120)
    assert killed.returncode in (-signal.SIGKILL, 1), out + err
    assert "last.ckpt" in names(bucket)
    # Another machine has none of it.
    shutil.rmtree(machine)
    on = train(*how, *SHORT, "resume=s3://runs/mine")
    assert "fetched last.ckpt from s3://runs/mine" in on.err
    assert names(bucket) == {"best.ckpt", "last.ckpt"}
    whole = trained("strategy=single", *SHORT)
    curve, theirs = (column(run, "train/loss") for run in (whole.run, on.run))
    assert 0 < len(theirs) < len(curve) == 2 * EPOCH
    assert largest_difference(curve[-len(theirs) :], theirs) <= ROUNDING
    evaluated = cli("evaluate.py", "checkpoint=s3://runs/mine/best.ckpt")
    assert evaluated.status == 0, evaluated.err


def test_a_bucket_that_is_not_there_is_rejected(bucket: Any, refused: Refused) -> None:
    line = refused("train.py", *TINY, f"{DIRPATH}=s3://other/run")
    assert f"{DIRPATH}=s3://other/run: cannot be written to" in line
    line = refused("train.py", *TINY, "resume=s3://other/run")
    assert "resume=s3://other/run: there is no checkpoint" in line
