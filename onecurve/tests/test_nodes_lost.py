"""Ranks and nodes that die: what the others say, and how the run goes on."""

import base64
import json
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import (
    ROOT,
    ROUNDING,
    TINY,
    Cli,
    column,
    largest_difference,
    run_directories,
)
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
from torch.distributed import TCPStore

from onecurve.launch import addresses


@pytest.mark.slow
def test_a_killed_rank_ends_both_nodes(start: Start, tmp_path: Path) -> None:
    nodes = two_nodes(start, *SLOW_EPOCHS)
    victim = training_rank(nodes, tmp_path, 1)
    assert {address for node in nodes for address in listens(node.pid)} == {"127.0.0.1"}
    os.kill(victim, signal.SIGKILL)
    said = finish(*nodes, status=1)
    for _, err in said:
        assert "rank 1 was ended by signal SIGKILL" in err
    assert sum(err.startswith("node localhost ended") for _, err in said) == 1
    metrics = json.loads((one_run(tmp_path) / "metrics.json").read_text())
    assert metrics["status"] == "failed"
    assert "rank 1 was ended by signal SIGKILL" in metrics["error"]


@pytest.mark.compares
@pytest.mark.slow
def test_a_restart_starts_the_ranks_of_both_nodes(
    start: Start, trained: Cli, tmp_path: Path
) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    die = (
        "+callbacks.die._target_=test_resume.Die",
        "+callbacks.die.at=[1,8]",
        "+callbacks.die.rank=1",
    )
    command = (*TRAIN, *NODE, place, *die, "launch.max_restarts=2")
    nodes = [start(*command) for _ in range(2)]
    run_code_of_a_stranger(place.partition("=")[2], tmp_path / "stranger")
    said = finish(*nodes)
    assert not (tmp_path / "stranger").exists()
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)
    out = "".join(out for out, _ in said)
    assert "restart 1 of 2: the ranks go on from the start" in out
    assert "restart 2 of 2: the ranks go on from last.ckpt" in out


class Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return os.mknod, (str(self.file),)


def run_code_of_a_stranger(place: str, file: Path) -> None:
    """Put a pickle where torchelastic's own rendezvous reads its state, in all that is there."""
    host, port = place.split(":")
    wait_until(lambda: addresses.accepts_connections(host, int(port)))
    store = TCPStore(host, int(port), is_master=False)
    for name in ("run", "", "none"):
        store.set(f"torch.rendezvous.{name}", base64.b64encode(pickle.dumps(Touch(file))))


DIES = ("+callbacks.die._target_=test_resume.Die", "+callbacks.die.node=true")
DIES += ("+callbacks.die.rank=1", "+callbacks.die.at=[8]")


@pytest.mark.compares
@pytest.mark.long
def test_a_node_that_was_killed_takes_its_place_again(
    start: Start, trained: Cli, tmp_path: Path
) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    command = (*TRAIN, *NODE, place, *DIES, "launch.max_restarts=1")
    nodes = [start(*command) for _ in range(2)]
    wait_until(lambda: any(node.poll() is not None for node in nodes))
    (killed,) = (node for node in nodes if node.poll() is not None)
    assert killed.returncode == -signal.SIGKILL
    nodes.remove(killed)
    finish(*nodes, start(*command))
    run = one_run(tmp_path)
    assert has_the_curve_of_one_node(run, trained)
    said = nodes[0].stdout.read_text()
    assert "restart 1 of 1: the ranks go on from last.ckpt" in said
    assert "node 2 of 2 (localhost) is gone; waiting 600 s" in nodes[0].stderr.read_text()


@pytest.mark.compares
@pytest.mark.long
@pytest.mark.parametrize("is_numbered", [True, False])
def test_the_node_that_all_meet_at_may_come_back(
    start_by: StartBy, trained: Cli, tmp_path: Path, is_numbered: bool
) -> None:
    """As the first of them again, or, where nothing numbers them, behind the one that stayed."""
    typed = (*TRAIN, *NODE, f"launch.rendezvous=localhost:{free_port()}", "launch.max_restarts=1")
    command = (*typed, "+callbacks.die._target_=test_resume.Die", "+callbacks.die.node=true")
    command += ("+callbacks.die.at=[8]",)

    def node(number: int) -> subprocess.Popen[str]:
        # Started afresh, as torch is told when it is imported to keep its stack traces to itself.
        told = (f"PET_NODE_RANK={number}",) if is_numbered else ()
        return start_by("env", *told, sys.executable, str(ROOT / "train.py"), *command)

    killed = node(0)
    wait_until(lambda: bool(listens(killed.pid)))
    left = node(1)
    wait_until(lambda: killed.poll() is not None)
    assert killed.returncode == -signal.SIGKILL
    (out, err), (other, _) = finish(left, node(0))
    assert re.fullmatch(r"the node at \S+ is gone, .*; waiting 600 s for it to come back\n", err), (
        err
    )
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)
    assert (out + other).count("restart 1 of 1: the ranks go on from last.ckpt") == 1


@pytest.mark.long
def test_the_node_that_is_left_says_which_is_gone(start: Start, tmp_path: Path) -> None:
    nodes = two_nodes(start, *DIES)
    wait_until(lambda: any(node.poll() is not None for node in nodes))
    (left,) = (node for node in nodes if node.poll() is None)
    ((_, err),) = finish(left, status=1)
    assert err.startswith("node 2 of 2 (localhost) is gone: nothing is heard of it any more;")
    assert len(err.splitlines()) == 1, err
    metrics = json.loads((one_run(tmp_path) / "metrics.json").read_text())
    assert metrics["status"] == "failed"
    assert "node 2 of 2 (localhost) is gone" in metrics["error"]


OWN_DISKS = pytest.mark.skipif(not CAN_MOUNT, reason="a disk for each node alone needs root")


def on_disks_of_their_own(
    start_by: StartBy, monkeypatch: pytest.MonkeyPatch, folder: Path, *typed: str
) -> tuple[str, list[Path]]:
    """Two nodes in folders that only one of them sees: what they print, and the two, first's first.

    Both are called alike by their nodes, as disks of machines are.
    """
    disks = [folder / name for name in ("disk", "disk1", "disk2")]
    for disk in disks:
        disk.mkdir(parents=True)
    place = f"launch.rendezvous=localhost:{free_port()}"
    command = (sys.executable, str(ROOT / "train.py"), *TRAIN, *NODE, place, *typed)
    mounted = f'mount --bind "$0" {disks[0]} && exec "$@"'
    with monkeypatch.context() as patch:
        patch.setenv("PROJECT_ROOT", str(disks[0]))
        nodes = [
            start_by("unshare", "--mount", "bash", "-c", mounted, str(disk), *command)
            for disk in disks[1:]
        ]
    said = "".join(out for out, _ in finish(*nodes))
    return said, sorted(disks[1:], key=lambda disk: -len(list(disk.rglob("config.yaml"))))


@pytest.mark.compares
@pytest.mark.long
@OWN_DISKS
def test_nodes_need_no_disk_that_they_share(
    start_by: StartBy, trained: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 writes; a restart and the test of the best weights reach the others all the same."""
    die = ("+callbacks.die._target_=test_resume.Die", "+callbacks.die.at=[8]")
    typed = (*die, "launch.max_restarts=1")
    said, (first, other) = on_disks_of_their_own(start_by, monkeypatch, tmp_path, *typed)
    assert "restart 1 of 1: the ranks go on from last.ckpt" in said
    (run,) = run_directories(first)
    assert has_the_curve_of_one_node(run, trained)
    assert {path.name for path in other.rglob("*") if path.is_file()} == {
        "rank_1.log",
        "last.ckpt",
    }


@pytest.mark.compares
@pytest.mark.long
@OWN_DISKS
def test_other_nodes_go_on_from_an_address(
    start_by: StartBy, trained: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing but the object store is left of the nodes before."""
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
