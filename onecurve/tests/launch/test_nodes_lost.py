"""Ranks and nodes that die: how the run ends, or continues."""

import json
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import Cli, run_directories
from lightning.pytorch import Callback, Trainer
from nodes import (
    CAN_MOUNT,
    TRAIN,
    Start,
    elastic_pod,
    finish,
    free_port,
    has_the_curve_of_one_node,
    kill_node,
    one_run,
    pod,
    two_nodes,
    wait_until,
)
from processes import listens
from test_resume import dying


@pytest.mark.long
def test_a_killed_rank_ends_both_nodes(start: Start, tmp_path: Path) -> None:
    finish(*two_nodes(start, *dying(8, rank=1)), status=1)
    metrics = json.loads((one_run(tmp_path) / "metrics.json").read_text())
    assert metrics["status"] == "failed"


@pytest.mark.compares
@pytest.mark.long
def test_a_restart_starts_the_ranks_of_both_nodes(
    start: Start, trained: Cli, tmp_path: Path
) -> None:
    said = finish(*two_nodes(start, *dying(1, 8, rank=1), "launch.max_restarts=2"))
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)
    out = "".join(out for out, _ in said)
    assert "restart 1 of 2: the ranks continue from the start" in out
    assert "restart 2 of 2: the ranks continue from last.ckpt" in out


@pytest.mark.compares
@pytest.mark.long
def test_a_killed_node_can_rejoin(start: Start, trained: Cli, tmp_path: Path) -> None:
    port = free_port()
    dies = (*dying(8, rank=1), "+callbacks.die.node=true")
    command = (*TRAIN, *dies, "launch.max_restarts=1")
    left, killed = (start(*command, **pod(number, port)) for number in (0, 1))
    wait_until(lambda: killed.poll() is not None)
    assert killed.returncode == -signal.SIGKILL
    said = finish(left, start(*command, **pod(1, port)))
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)
    out = "".join(out for out, _ in said)
    assert "restart 1 of 1: the ranks continue from last.ckpt" in out


class Slow(Callback):
    """Leaves time for nodes to go and come; makes a file for each step, with its ranks' number."""

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if trainer.is_global_zero:
            Path(f"step-{trainer.global_step}-of-{trainer.world_size}").touch()
        time.sleep(0.2)


@pytest.mark.compares
@pytest.mark.long
def test_a_run_continues_with_fewer_and_with_more_nodes(
    start: Start, trained: Cli, tmp_path: Path
) -> None:
    """An elastic job of one or two pods: one is killed, the other trains on alone, one joins."""
    epochs = "trainer.max_epochs=20"
    slow = "+callbacks.slow._target_=test_nodes_lost.Slow"
    command = (*TRAIN, "launch.max_restarts=3", epochs, slow)

    def steps(ranks: int) -> int:
        return len(list(tmp_path.glob(f"step-*-of-{ranks}")))

    told = {**elastic_pod(0, free_port()), "PET_RDZV_CONF": "last_call_timeout=5"}
    first = start(*command, **told)
    wait_until(lambda: bool(listens(first.pid)))
    second = start(*command, **told)
    wait_until(lambda: steps(2) > 8)
    kill_node(second)
    wait_until(lambda: steps(1) > 3)
    before = steps(2)
    third = start(*command, **told)
    wait_until(lambda: steps(2) > before + 3)
    finish(first, third)
    (run,) = run_directories(tmp_path)
    assert has_the_curve_of_one_node(run, trained, epochs)


OWN_DISKS = pytest.mark.skipif(not CAN_MOUNT, reason="a disk for each node alone needs root")


def on_disks_of_their_own(
    start: Start, folder: Path, *typed: str, status: int = 0
) -> tuple[str, list[Path]]:
    """Two nodes in folders that only one of them sees: what they print, and the two.

    Both are called alike by their nodes, as disks of machines are.
    """
    seen, *disks = (folder / name for name in ("disk", "disk1", "disk2"))
    for disk in (seen, *disks):
        disk.mkdir(parents=True)
    port = free_port()
    unshare = ("unshare", "--mount", "bash", "-c", f'mount --bind "$0" {seen} && exec "$@"')
    # Rank 0, which writes the record and the metrics, is on the first.
    nodes = [
        start(
            *TRAIN, *typed, by=(*unshare, str(disk), sys.executable), PROJECT_ROOT=str(seen),
            **pod(number, port),
        )
        for number, disk in enumerate(disks)
    ]  # fmt: skip
    said = "".join(out + err for out, err in finish(*nodes, status=status))
    return said, disks


@pytest.mark.compares
@pytest.mark.long
@OWN_DISKS
def test_nodes_without_a_shared_disk_resume_from_an_address(
    start: Start, trained: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rank 0 writes, but the others can restart and test the best weights."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    to = f"callbacks.checkpoint.dirpath=local://{tmp_path}/bucket"
    typed = (*dying(8), "launch.max_restarts=1", to)
    said, (first, other) = on_disks_of_their_own(start, tmp_path, *typed)
    assert "restart 1 of 1: the ranks continue from last.ckpt" in said
    (run,) = run_directories(first)
    assert has_the_curve_of_one_node(run, trained)
    # Also why the first attempt failed, as this rank saw it.
    files = {path.name for path in other.rglob("*") if path.is_file()}
    assert files == {"rank_1.log", "metrics.json"}


@pytest.mark.long
@OWN_DISKS
def test_nodes_without_a_shared_disk_or_an_address_get_an_error(
    start: Start, tmp_path: Path
) -> None:
    typed = (*dying(8), "launch.max_restarts=1")
    said, _ = on_disks_of_their_own(start, tmp_path, *typed, status=1)
    assert "1 of 2 ranks have no access to" in said
    assert "callbacks.checkpoint.dirpath=s3://BUCKET/PATH" in said
