"""How nodes meet: what they wait for, which nodes are rejected, and what each must read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nodes import (
    CAN_MOUNT,
    NODE,
    TRAIN,
    Start,
    StartBy,
    finish,
    free_port,
    one_run,
    wait_until,
)
from torch.distributed import TCPStore

from onecurve.launch import addresses
from onecurve.launch.store import listening_store

NAMED_LATE = """
import sys, time
from onecurve.launch.nodes import _store_at
print(_store_at("job-node-0-0.job", int(sys.argv[1]), 0, time.monotonic() + 60, 60)[1])
"""


@pytest.mark.long
@pytest.mark.skipif(not CAN_MOUNT, reason="a file of hosts of a node's own needs root")
def test_nodes_wait_until_a_host_name_can_be_resolved(start_by: StartBy, tmp_path: Path) -> None:
    """Also on the node that it names, which then serves the store."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    mounted = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    python = (sys.executable, "-c", NAMED_LATE, str(free_port()))
    node = start_by("unshare", "--mount", "bash", "-c", mounted, "bash", *python)
    with pytest.raises(subprocess.TimeoutExpired):
        node.wait(timeout=4)
    with hosts.open("a") as file:
        file.write("127.0.0.1 job-node-0-0.job\n")
    ((out, _),) = finish(node)
    assert out == "True\n"


def test_a_node_gives_up_if_no_other_joins(start: Start, tmp_path: Path) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    ((_, err),) = finish(start(*TRAIN, *NODE, place, "launch.timeout_seconds=1"), status=2)
    assert len(err.splitlines()) == 1, err
    assert "only 1 of 2 nodes" in err
    assert list(tmp_path.iterdir()) == []


def test_a_node_gives_up_if_nothing_listens_at_the_address(start: Start, tmp_path: Path) -> None:
    # An address for documentation: no machine has it.
    place = "launch.rendezvous=192.0.2.1:29500"
    ((_, err),) = finish(start(*TRAIN, *NODE, place, "launch.timeout_seconds=1"), status=2)
    assert len(err.splitlines()) == 1, err
    assert "nothing answered" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_different_commands_are_rejected(start: Start, tmp_path: Path) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    nodes = [start(*TRAIN, *NODE, place, f"optimizer.lr=0.0{lr}") for lr in (1, 2)]
    for _, err in finish(*nodes, status=2):
        assert err.startswith("error: optimizer.lr=0.01: only some of the nodes")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_node_with_the_store_stays_until_all_have_read(start: Start) -> None:
    """Otherwise the slower of two nodes could not read it, and would end with a traceback."""
    port = free_port()
    typed = f"launch.rendezvous=localhost:{port}"
    node = start(*TRAIN, *NODE, typed, "optimizer.lr=0.01")
    wait_until(lambda: addresses.accepts_connections("localhost", port))
    store = TCPStore("localhost", port, is_master=False)
    wait_until(lambda: store.check(["command/0"]))
    assert store.add("arrived", 1) == 2
    store.set("command/1", json.dumps(["optimizer.lr=0.02"]))
    with pytest.raises(subprocess.TimeoutExpired):
        node.wait(timeout=3)
    store.add("commands/read", 1)
    ((_, err),) = finish(node, status=2)
    assert "only some of the nodes have this override" in err


@pytest.mark.long
def test_too_few_nodes_with_numbers_give_up(start: Start, tmp_path: Path) -> None:
    """Also if two have the same number: a restarted node gets its earlier place."""
    place = f"launch.rendezvous=localhost:{free_port()}"
    typed = (*TRAIN, *NODE, place, "launch.timeout_seconds=1")
    ((_, first),) = finish(start(*typed, "launch.node_rank=0"), status=2)
    ((_, second),) = finish(start(*typed, "launch.node_rank=1"), status=2)
    assert "only 1 of 2 nodes" in first
    assert "nothing answered there" in second
    assert "node 0" in second
    assert list(tmp_path.iterdir()) == []


def test_numbers_for_some_of_the_nodes_are_rejected(start: Start, tmp_path: Path) -> None:
    port = free_port()
    store = listening_store("localhost", port)
    store.set("way", "c10d")
    typed = (*TRAIN, *NODE, f"launch.rendezvous=localhost:{port}", "launch.node_rank=1")
    ((_, err),) = finish(start(*typed), status=2)
    assert err.startswith("error: launch.node_rank=1: only some of the nodes have numbers")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_node_killed_before_all_have_come_can_join_again(start: Start, tmp_path: Path) -> None:
    port = free_port()
    typed = ("trainer.num_nodes=3", "trainer.devices=1", f"launch.rendezvous=localhost:{port}")
    host = start(*TRAIN, *typed)
    wait_until(lambda: addresses.accepts_connections("localhost", port))
    killed = start(*TRAIN, *typed)
    store = TCPStore("localhost", port, is_master=False)
    wait_until(lambda: store.add("arrived", 0) == 2)
    killed.kill()
    finish(host, start(*TRAIN, *typed), start(*TRAIN, *typed))
    assert json.loads((one_run(tmp_path) / "metrics.json").read_text())["world_size"] == 3
