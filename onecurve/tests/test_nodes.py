"""Several nodes are one run, with one directory and the curve of one node; how they meet, and which
are rejected.

With network namespaces each has an address of its own as well.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Cli, one_of_a_kind
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
from torch.distributed import TCPStore

from onecurve.launch import addresses
from onecurve.launch.addresses import listening_store


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize("strategy", one_of_a_kind(["ddp", "fsdp", "pipeline"], kept=["pipeline"]))
def test_two_nodes_are_one_run(start: Start, trained: Cli, tmp_path: Path, strategy: str) -> None:
    """Each strategy started in another way: by hand, as a TrainJob, as an elastic PyTorchJob."""
    port = free_port()
    typed = [f"strategy={strategy}"]
    told: dict[str, str] = {}
    if strategy == "ddp":
        typed += [*NODE, f"launch.rendezvous=localhost:{port}"]
    elif strategy == "fsdp":
        told = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "1"}
        told |= {"PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": str(port)}
    else:
        told = {"PET_NNODES": "1:2", "PET_RDZV_ENDPOINT": f"localhost:{port}"}
        typed += ["trainer.devices=1"]
    # Where nodes have numbers, the second comes first, and yet the first has rank 0.
    nodes = [start(*TRAIN[:-1], *typed, **told)]
    if strategy == "fsdp":
        told["PET_NODE_RANK"] = "0"
    nodes.insert(0, start(*TRAIN[:-1], *typed, **told))
    said = finish(*nodes)
    run = one_run(tmp_path)
    assert sorted("Training finished" in out for out, _ in said) == [False, True]
    assert sum(out.startswith("node 2 of 2:") and str(run) in out for out, _ in said) == 1
    assert strategy != "fsdp" or "Training finished" in said[0][0]
    assert has_the_curve_of_one_node(run, trained)


@pytest.mark.compares
@pytest.mark.long
@pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("ip") is None
    or subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode,
    reason="network namespaces need root, `ip` and a kernel that lets it make them",
)
def test_two_nodes_with_addresses_of_their_own(
    start_by: StartBy, trained: Cli, tmp_path: Path
) -> None:
    """Two connected network namespaces; on both the machine's name resolves to loopback."""
    names = [f"node{os.getpid()}{side}" for side in "ab"]
    place = "launch.rendezvous=10.231.77.1:29500"
    command = (sys.executable, str(ROOT / "train.py"), *TRAIN)
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ends = [arguments for name in names for arguments in ("name", "veth0", "netns", name)]
        ip("link", "add", *ends[:4], "type", "veth", "peer", *ends[4:])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "addr", "add", f"10.231.77.{number}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")
        nodes = [start_by("ip", "netns", "exec", name, *command, *NODE, place) for name in names]
        finish(*nodes)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@pytest.mark.long
def test_ctrl_c_on_one_node_ends_both(start: Start, tmp_path: Path) -> None:
    nodes = two_nodes(start, *SLOW_EPOCHS)
    training_rank(nodes, tmp_path, 1)
    os.killpg(nodes[1].pid, signal.SIGINT)
    said = finish(*nodes, status=130)
    for _, err in said:
        assert "stopped by SIGINT" in err
        assert "Traceback" not in err
    metrics = json.loads((one_run(tmp_path) / "metrics.json").read_text())
    assert metrics["status"] == "interrupted"
    assert metrics["stopped"].startswith("stopped by SIGINT after step ")


NAMED_LATE = """
import sys, time
from onecurve.launch.meeting import _store_at
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


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("localhost", "only 1 of 2 nodes"),
        ("192.0.2.1", "nothing answered"),  # for documentation: no machine has this address
    ],
)
def test_a_node_gives_up_if_no_other_joins_or_nothing_listens_at_the_address(
    start: Start, tmp_path: Path, host: str, words: str
) -> None:
    place = f"launch.rendezvous={host}:{free_port()}"
    ((_, err),) = finish(start(*TRAIN, *NODE, place, "launch.timeout_seconds=1"), status=2)
    assert len(err.splitlines()) == 1, err
    assert words in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_different_commands_are_rejected(start: Start, tmp_path: Path) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    nodes = [start(*TRAIN, *NODE, place, f"optimizer.lr=0.0{lr}") for lr in (1, 2)]
    for _, err in finish(*nodes, status=2):
        assert err.startswith("error: optimizer.lr=0.01: only some of the nodes")
    assert list(tmp_path.iterdir()) == []


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
