"""A run that is killed leaves whole checkpoints in a bucket, from which another machine goes on.

The bucket is that of moto, which answers as Amazon's S3 does; `make test-storage` installs it.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
from conftest import EPOCH, FLOAT64, ROUNDING, TINY, Cli, column, largest_difference
from lightning.pytorch import Callback
from moto.server import ThreadedMotoServer
from processes import Command

from onecurve.checkpoint import remote

SHORT = ("test=false", FLOAT64, "callbacks.checkpoint.last_every_n_steps=4")
SHARDED = ("strategy=fsdp", "checkpoint.format=sharded")


class DieInUpload(Callback):
    """Kills its process in the middle of the n-th file that is sent, and all of it with it."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.send = remote._sent

    def on_fit_start(self, *_: object) -> None:
        remote._sent = self.half

    def half(self, files: Any, source: Path, target: str) -> dict[str, Any]:
        self.left -= 1
        if self.left:
            return self.send(files, source, target)
        cut = source.with_name("cut")
        cut.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
        self.send(files, cut, target)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


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


def listed(files: Any, path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files.cat_file(f"{path}/checkpoints.json"))
    return found["checkpoints"]


def held(files: Any, path: str) -> dict[str, int]:
    """Every object below a path, with its size."""
    return {file[len(path) + 1 :]: files.size(file) for file in files.find(path)}


def named(checkpoints: dict[str, Any]) -> dict[str, int]:
    """What a list says of every object."""
    return {
        f"{entry['folder']}/{name}": file["size"]
        for entry in checkpoints.values()
        for name, file in entry["files"].items()
    }


@pytest.mark.compares
@pytest.mark.parametrize("how", [("strategy=single",), SHARDED], ids=["file", "sharded"])
def test_a_killed_run_goes_on_elsewhere(
    bucket: Any, train: Cli, cli: Cli, tmp_path: Path, how: tuple[str, ...]
) -> None:
    whole = train("strategy=single", *SHORT)
    to = "checkpoint.mirror_to=s3://runs/mine"
    # Of last.ckpt alone there are three before an epoch ends; a sharded one has several files.
    nth = 3 if how != SHARDED else 12
    dies = ["+callbacks.die._target_=storage.test_s3.DieInUpload", f"+callbacks.die.nth={nth}"]
    machine = tmp_path / "machine"
    machine.mkdir()
    killed = Command(machine, "train.py", *TINY, *SHORT, *how, to, *dies)
    out, err = killed.communicate(120)
    ended = -signal.SIGKILL if how != SHARDED else 1
    assert killed.returncode == ended, out + err
    # All that the list names is there as it says, and half of a checkpoint beside it.
    before, there = listed(bucket, "runs/mine"), held(bucket, "runs/mine")
    print("killed, the bucket holds:", *(f"\n  {size:8} {name}" for name, size in there.items()))
    # Which is the newest depends on how many were passed over while one was on its way.
    newest = max(before, key=lambda name: before[name]["number"])
    assert named(before).items() <= there.items()
    half = there.keys() - named(before).keys() - {"checkpoints.json"}
    assert half
    assert not any(name.endswith("index.json") for name in half)
    # Another machine has none of it.
    shutil.rmtree(machine)
    on = train(*how, *SHORT, to, "resume=s3://runs/mine")
    assert f"fetched {newest} from s3://runs/mine" in on.err
    after, there = listed(bucket, "runs/mine"), held(bucket, "runs/mine")
    print("gone on with, it holds:", *(f"\n  {size:8} {name}" for name, size in there.items()))
    assert there.keys() - {"checkpoints.json"} == named(after).keys()
    assert set(after) == {"best.ckpt", "last.ckpt"}
    assert after["last.ckpt"]["number"] > before[newest]["number"]
    curve, theirs = (column(run, "train/loss") for run in (whole.run, on.run))
    assert 0 < len(theirs) < len(curve) == 2 * EPOCH
    assert largest_difference(curve[-len(theirs) :], theirs) <= ROUNDING
    evaluated = cli("evaluate.py", "checkpoint=s3://runs/mine/best.ckpt")
    assert evaluated.status == 0, evaluated.err


def test_a_bucket_that_is_not_there_is_refused(bucket: Any, cli: Cli) -> None:
    refused = cli("train.py", *TINY, "checkpoint.mirror_to=s3://other/run")
    assert (refused.status, refused.runs) == (2, [])
    assert "checkpoint.mirror_to=s3://other/run: cannot be written to" in refused.err
    refused = cli("train.py", *TINY, "resume=s3://other/run")
    assert (refused.status, refused.runs) == (2, [])
    assert "resume=s3://other/run: there is no checkpoint" in refused.err
    assert refused.err.count("\n") == 1
