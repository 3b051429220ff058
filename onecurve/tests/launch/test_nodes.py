"""Several nodes are one run, with one directory and the curve of one node; torchrun starts them.

With network namespaces each has an address of its own as well.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Cli, one_of_a_kind
from nodes import (
    TRAIN,
    Start,
    StartBy,
    elastic_pod,
    finish,
    free_port,
    has_the_curve_of_one_node,
    one_run,
    pod,
)


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize("strategy", one_of_a_kind(["ddp", "fsdp", "pipeline"], kept=["pipeline"]))
def test_pods_of_kubeflow_are_one_run(
    start: Start, trained: Cli, tmp_path: Path, strategy: str
) -> None:
    """Each strategy in pods of another kind: a PyTorchJob, a TrainJob, an elastic PyTorchJob."""
    port = free_port()
    told = [pod(number, port) for number in (0, 1)]
    if strategy == "ddp":
        for number in (0, 1):
            told[number] |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
            told[number] |= {"WORLD_SIZE": "2", "RANK": str(number)}
    elif strategy == "pipeline":
        told = [elastic_pod(port), elastic_pod(port)]
    typed = (*TRAIN[:-1], f"strategy={strategy}")
    # Where pods have numbers, the second comes first, and yet the first has rank 0.
    second = start(*typed, **told[1])
    said = finish(start(*typed, **told[0]), second)
    assert sorted("Training finished" in out for out, _ in said) == [False, True]
    assert strategy == "pipeline" or "Training finished" in said[0][0]
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)


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
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1")
    torchrun += ("--master-addr=10.231.77.1", "--master-port=29500")
    # The name of the machine is that of loopback on both.
    train = ("env", "GLOO_SOCKET_IFNAME=veth0", *torchrun)
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ends = [arguments for name in names for arguments in ("name", "veth0", "netns", name)]
        ip("link", "add", *ends[:4], "type", "veth", "peer", *ends[4:])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "addr", "add", f"10.231.77.{number}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")
        nodes = [
            start_by(
                *("ip", "netns", "exec", name, *train, f"--node-rank={number}"),
                *(str(ROOT / "train.py"), *TRAIN),
            )
            for number, name in enumerate(names)
        ]
        finish(*nodes)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
