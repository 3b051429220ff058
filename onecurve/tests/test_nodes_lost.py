"""Ranks and nodes that die: what the others report, and how the run continues."""

import base64
import json
import os
import pickle
import re
import signal
import sys
from pathlib import Path

import pytest
from conftest import ROOT, ROUNDING, TINY, Cli, column, largest_difference, run_directories
from nodes import (
    CAN_MOUNT,
    NODE,
    SLOW_EPOCHS,
    TRAIN,
    Start,
    StartBy,
    finish,
    free_port,
    has_the_curve_of_one_node,
    one_run,
    training_rank,
    two_nodes,
    wait_until,
)
from processes import listens
from test_resume import dying
from torch.distributed import TCPStore

from onecurve.launch import addresses


@pytest.mark.long
def test_a_killed_rank_ends_both_nodes(start: Start, tmp_path: Path) -> None:
    nodes = two_nodes(start, *SLOW_EPOCHS)
    victim = training_rank(nodes, tmp_path, 1)
    assert {address for node in nodes for address in listens(node.pid)} == {"127.0.0.1"}
    os.kill(victim, signal.SIGKILL)
    said = finish(*nodes, status=1)
    for _, err in said:
        assert "rank 1 was ended by signal SIGKILL" in err
    # Not at the start: this process's torch, imported long ago, warns of the lost connection first.
    assert sum(bool(re.search("^another node ended: ", err, re.M)) for _, err in said) == 1
    metrics = json.loads((one_run(tmp_path) / "metrics.json").read_text())
    assert metrics["status"] == "failed"
    assert "rank 1 was ended by signal SIGKILL" in metrics["error"]


@pytest.mark.compares
@pytest.mark.slow
def test_a_restart_starts_the_ranks_of_both_nodes(
    start: Start, trained: Cli, tmp_path: Path
) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    command = (*TRAIN, *NODE, place, *dying(1, 8, rank=1), "launch.max_restarts=2")
    nodes = [start(*command, f"launch.node_rank={number}") for number in range(2)]
    run_code_of_a_stranger(place.partition("=")[2], tmp_path / "stranger")
    said = finish(*nodes)
    assert not (tmp_path / "stranger").exists()
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)
    out = "".join(out for out, _ in said)
    assert "restart 1 of 2: the ranks continue from the start" in out
    assert "restart 2 of 2: the ranks continue from last.ckpt" in out


class Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return os.mknod, (str(self.file),)


def run_code_of_a_stranger(place: str, file: Path) -> None:
    """Put a pickle where torch's c10d rendezvous reads its state; the static one has none."""
    host, port = place.split(":")
    wait_until(lambda: addresses.accepts_connections(host, int(port)))
    store = TCPStore(host, int(port), is_master=False)
    for name in ("onecurve", "", "none"):
        store.set(f"torch.rendezvous.{name}", base64.b64encode(pickle.dumps(Touch(file))))


NODE_DIES = "+callbacks.die.node=true"


@pytest.mark.compares
@pytest.mark.long
@pytest.mark.parametrize("rendezvous", ["c10d", "static"])
def test_a_killed_node_can_rejoin(
    start: Start, trained: Cli, tmp_path: Path, rendezvous: str
) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    command = (*TRAIN, *NODE, place, *dying(8, rank=1), NODE_DIES, "launch.max_restarts=1")
    numbers = [
        f"launch.node_rank={number if rendezvous == 'static' else 'null'}" for number in "01"
    ]
    left = start(*command, numbers[0])
    # The store is in the first; rank 1, which is killed, on the second.
    wait_until(lambda: bool(listens(left.pid)))
    killed = start(*command, numbers[1])
    wait_until(lambda: killed.poll() is not None)
    assert killed.returncode == -signal.SIGKILL
    said = finish(left, start(*command, numbers[1]))
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)
    # Either may have rank 0: c10d sorts nodes by their PIDs.
    out = "".join(out for out, _ in said)
    assert "restart 1 of 1: the ranks continue from last.ckpt" in out


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_the_remaining_node_reports_what_happened(
    start_by: StartBy, tmp_path: Path, rank: int
) -> None:
    """After it has lost the store at which all meet, or another node."""
    place = f"launch.rendezvous=localhost:{free_port()}"
    # Started afresh, as torch is told when it is imported to keep its stack traces to itself.
    command = (sys.executable, str(ROOT / "train.py"), *TRAIN, *NODE, place)
    command += (*dying(8, rank=rank), NODE_DIES)
    nodes = [start_by(*command) for _ in range(2)]
    wait_until(lambda: any(node.poll() is not None for node in nodes))
    (left,) = (node for node in nodes if node.poll() is None)
    ((_, err),) = finish(left, status=1)
    assert len(err.splitlines()) == 1, err
    assert re.match(r"another node is gone: rank [01] failed|the node at \S+ is gone", err), err
    assert "resume=last" in err
    metrics = json.loads((one_run(tmp_path) / "metrics.json").read_text())
    assert metrics["status"] == "failed"


@pytest.mark.compares
@pytest.mark.long
def test_a_run_continues_with_fewer_and_with_more_nodes(
    start: Start, trained: Cli, tmp_path: Path
) -> None:
    """launch.nodes=1:2: a node is killed, the other trains on alone, and another joins."""
    epochs = "trainer.max_epochs=20"
    command = (*TRAIN, "trainer.devices=1", "launch.nodes=1:2", "launch.max_restarts=3", epochs)
    command += (f"launch.rendezvous=localhost:{free_port()}",)
    command += ("+callbacks.slow._target_=test_torchrun.Slow",)

    def steps(ranks: int) -> int:
        return len(list(tmp_path.glob(f"step-*-of-{ranks}")))

    conf = {"PET_RDZV_CONF": "last_call_timeout=5"}
    first = start(*command, **conf)
    wait_until(lambda: bool(listens(first.pid)))
    second = start(*command, **conf)
    wait_until(lambda: steps(2) > 8)
    second.kill()
    wait_until(lambda: steps(1) > 3)
    before = steps(2)
    third = start(*command, **conf)
    wait_until(lambda: steps(2) > before + 3)
    finish(first, third)
    (run,) = run_directories(tmp_path)
    single = trained(*TRAIN[len(TINY) :], epochs, "trainer.devices=2").run
    for name in ("train/loss", "val/loss", "test/acc"):
        assert largest_difference(column(single, name), column(run, name)) <= ROUNDING


OWN_DISKS = pytest.mark.skipif(not CAN_MOUNT, reason="a disk for each node alone needs root")


def on_disks_of_their_own(
    start_by: StartBy, monkeypatch: pytest.MonkeyPatch, folder: Path, *typed: str, status: int = 0
) -> tuple[str, list[Path]]:
    """Two nodes in folders that only one of them sees: what they print, and the two.

    Both are called alike by their nodes, as disks of machines are.
    """
    disks = [folder / name for name in ("disk", "disk1", "disk2")]
    for disk in disks:
        disk.mkdir(parents=True)
    place = f"launch.rendezvous=localhost:{free_port()}"
    command = (sys.executable, str(ROOT / "train.py"), *TRAIN, *NODE, place, *typed)
    # Rank 0, which writes the record and the metrics, is on the first.
    numbers = [f"launch.node_rank={number}" for number in (0, 1)]
    mounted = f'mount --bind "$0" {disks[0]} && exec "$@"'
    with monkeypatch.context() as patch:
        patch.setenv("PROJECT_ROOT", str(disks[0]))
        nodes = [
            start_by("unshare", "--mount", "bash", "-c", mounted, str(disk), *command, number)
            for disk, number in zip(disks[1:], numbers, strict=True)
        ]
    said = "".join(out + err for out, err in finish(*nodes, status=status))
    return said, disks[1:]


@pytest.mark.compares
@pytest.mark.long
@OWN_DISKS
def test_nodes_without_a_shared_disk_resume_from_the_mirror(
    start_by: StartBy, trained: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rank 0 writes, but the others can restart and test the best weights."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mirror = f"checkpoint.mirror_to=file://{tmp_path}/bucket"
    typed = (*dying(8), "launch.max_restarts=1", mirror)
    said, (first, other) = on_disks_of_their_own(start_by, monkeypatch, tmp_path, *typed)
    assert "restart 1 of 1: the ranks continue from last.ckpt" in said
    (run,) = run_directories(first)
    assert has_the_curve_of_one_node(run, trained)
    assert {path.name for path in other.rglob("*") if path.is_file()} == {"rank_1.log"}


@pytest.mark.long
@OWN_DISKS
def test_nodes_without_a_shared_disk_or_a_mirror_get_an_error(
    start_by: StartBy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = (*dying(8), "launch.max_restarts=1")
    said, _ = on_disks_of_their_own(start_by, monkeypatch, tmp_path, *typed, status=2)
    assert "1 of 2 ranks have no access to" in said
    assert "checkpoint.mirror_to" in said


@pytest.mark.compares
@pytest.mark.long
@OWN_DISKS
def test_other_nodes_resume_from_an_address(
    start_by: StartBy, trained: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only the object store is left of the earlier nodes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bucket = f"file://{tmp_path}/bucket"
    # Of one that knows how long training lasts, half is not a half.
    same = "scheduler=none"
    typed = (same, "trainer.max_epochs=1", "test=false", f"checkpoint.mirror_to={bucket}")
    on_disks_of_their_own(start_by, monkeypatch, tmp_path / "before", *typed)
    typed = (same, f"resume={bucket}")
    _, (first, _) = on_disks_of_their_own(start_by, monkeypatch, tmp_path / "after", *typed)
    (run,) = run_directories(first)
    whole = trained(*TRAIN[len(TINY) :], same, "trainer.devices=2").run
    losses = column(run, "train/loss")
    assert losses
    assert largest_difference(column(whole, "train/loss")[-len(losses) :], losses) <= ROUNDING
    accuracy = "test/acc"
    assert largest_difference(column(whole, accuracy), column(run, accuracy)) <= ROUNDING
