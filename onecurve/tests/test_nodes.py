"""Several nodes are one run, with one directory and the curve of one node.

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
from conftest import (
    ROOT,
    Cli,
    one_of_a_kind,
)
from nodes import (
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
)


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


@pytest.mark.long
def test_an_exception_in_validation_on_one_node_ends_both(start: Start, tmp_path: Path) -> None:
    fail = ("+callbacks.fail._target_=test_failures.FailOnRank", "+callbacks.fail.rank=1")
    nodes = two_nodes(start, *fail, "+callbacks.fail.when=validation")
    said = finish(*nodes, status=1)
    assert sorted(err.count("Traceback") for _, err in said) == [0, 1]
    for _, err in said:
        assert "rank 1 failed" in err
        assert "ArithmeticError: validation failed" in err
