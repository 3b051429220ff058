"""Several nodes, and ranks that torchrun or srun started: one run, one directory, the same curve.

A node is a `python train.py` of its own here, with its own process tree; with network namespaces
each has an address of its own as well.
"""

import base64
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import (
    FLOAT64,
    ROOT,
    ROUNDING,
    TINY,
    Cli,
    column,
    largest_difference,
    run_directories,
)
from processes import Command, end, listens, nothing_stays_of, session
from torch.distributed import PrefixStore, TCPStore

from onecurve.errors import UserError
from onecurve.launch import addresses
from onecurve.launch.store import Messages

TRAIN = (*TINY, FLOAT64, "trainer.limit_train_batches=6", "strategy=ddp")
# Two nodes of one process each are the world of the reference run: two processes on one node.
NODE = ("trainer.num_nodes=2", "trainer.devices=1")
SLOW_EPOCHS = ("callbacks=[progress]", "trainer.max_epochs=100000")

Start = Callable[..., Command]
StartBy = Callable[..., subprocess.Popen[str]]


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a training run in the test's folder; what is left of it in the end is killed."""
    started = []

    def run(*arguments: str, **environment: str) -> Command:
        started.append(Command(tmp_path, "train.py", *arguments, **environment))
        return started[-1]

    yield run
    for process in started:
        end(process)


@pytest.fixture
def start_by(tmp_path: Path) -> Iterator[StartBy]:
    """Start a program that starts the training run."""
    started = []

    def run(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        end(process)


def finish(*processes: Command | subprocess.Popen[str], status: int = 0) -> list[tuple[str, str]]:
    """Wait for commands that must all end with a status, and leave nothing running."""
    said = [process.communicate(timeout=120) for process in processes]
    for process, (out, err) in zip(processes, said, strict=True):
        assert process.returncode == status, out + err
        assert nothing_stays_of(process.pid)
    return said


def one_run(folder: Path) -> Path:
    """The only run directory, which only one process may have made and recorded."""
    (run,) = run_directories(folder)
    assert [path.name for path in run.parent.iterdir()] == [run.name]
    assert (run / "logs/rank_1.log").exists()
    return run


def has_the_curve_of_one_node(run: Path, trained: Cli) -> bool:
    single = trained(*TRAIN[len(TINY) :], "trainer.devices=2").run
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["status"] == "finished"
    assert metrics["world_size"] == 2
    names = ("train/loss", "val/loss", "test/acc")
    return all(
        largest_difference(column(single, name), column(run, name)) <= ROUNDING for name in names
    )


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
def test_two_nodes_are_one_run(start: Start, trained: Cli, tmp_path: Path, strategy: str) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    nodes = [start(*TRAIN[:-1], f"strategy={strategy}", *NODE, place) for _ in range(2)]
    said = finish(*nodes)
    run = one_run(tmp_path)
    assert sorted("Training finished" in out for out, _ in said) == [False, True]
    assert sum(out.startswith("node 2 of 2:") and str(run) in out for out, _ in said) == 1
    assert has_the_curve_of_one_node(run, trained)


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("ip") is None
    or subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode,
    reason="network namespaces need root, `ip` and a kernel that lets it make them",
)
def test_two_nodes_with_addresses_of_their_own(
    start_by: StartBy, trained: Cli, tmp_path: Path
) -> None:
    """Two namespaces joined by a cable; the name of the machine leads to loopback on both."""
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


@pytest.mark.compares
@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_torchrun(start_by: StartBy, trained: Cli, tmp_path: Path, nodes: int) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}")
    torchrun += (f"--nproc-per-node={2 // nodes}", "--rdzv-backend=c10d", "--rdzv-id=test")
    torchrun += (f"--rdzv-endpoint=localhost:{free_port()}", "--local-addr=localhost")
    command = (*torchrun, str(ROOT / "train.py"), *TRAIN)
    agents = [start_by(*command, f"trainer.num_nodes={nodes}") for _ in range(nodes)]
    said = finish(*agents)
    assert sum(out.count("Training finished") for out, _ in said) == 1
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)


@pytest.mark.compares
@pytest.mark.slow
def test_srun(start: Start, trained: Cli, tmp_path: Path) -> None:
    """What srun tells its tasks, of which there are two on one node."""
    task = {"SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_NTASKS_PER_NODE": "2"}
    task |= {"SLURM_JOB_ID": "1", "SLURM_NODEID": "0", "SLURM_NODELIST": "localhost"}
    task |= {"MASTER_PORT": str(free_port())}
    ranks = [start(*TRAIN, SLURM_PROCID=rank, SLURM_LOCALID=rank, **task) for rank in ("0", "1")]
    said = finish(*ranks)
    assert said[1] == ("", "")
    assert has_the_curve_of_one_node(one_run(tmp_path), trained)


@pytest.mark.slow
def test_a_killed_rank_ends_both_nodes(start: Start, tmp_path: Path) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    nodes = [start(*TRAIN, *NODE, place, *SLOW_EPOCHS) for _ in range(2)]
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


@pytest.mark.slow
def test_ctrl_c_on_one_node_ends_both(start: Start, tmp_path: Path) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    nodes = [start(*TRAIN, *NODE, place, *SLOW_EPOCHS) for _ in range(2)]
    training_rank(nodes, tmp_path, 1)
    os.killpg(nodes[1].pid, signal.SIGINT)
    said = finish(*nodes, status=130)
    for _, err in said:
        assert "stopped by SIGINT" in err
        assert "Traceback" not in err
    metrics = json.loads((one_run(tmp_path) / "metrics.json").read_text())
    assert metrics == {"status": "interrupted"}


def training_rank(nodes: list[Command], folder: Path, rank: int) -> int:
    """PID of a rank, once it trains: the process that has the rank's log open."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        assert [node.poll() for node in nodes] == [None, None]
        time.sleep(0.2)
        if not any("epoch" in path.read_text() for path in folder.glob("runs/*/*/metrics.csv")):
            continue
        for row in [row for node in nodes for row in session(node.pid)]:
            pid = int(row.split()[0])
            files = [os.path.realpath(path) for path in Path(f"/proc/{pid}/fd").glob("*")]
            if any(file.endswith(f"logs/rank_{rank}.log") for file in files):
                return pid
    raise TimeoutError("no rank trains")


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


@pytest.mark.slow
def test_an_exception_in_validation_on_one_node_ends_both(start: Start, tmp_path: Path) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    fail = ("+callbacks.fail._target_=test_failures.FailOnRank", "+callbacks.fail.rank=1")
    command = (*TRAIN, *NODE, place, *fail, "+callbacks.fail.when=validation")
    said = finish(*[start(*command) for _ in range(2)], status=1)
    assert sorted(err.count("ArithmeticError: validation failed") for _, err in said) == [0, 1]
    assert all("rank 1 failed" in err for _, err in said)


def test_a_node_that_nobody_joins_gives_up(start: Start, tmp_path: Path) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    ((_, err),) = finish(start(*TRAIN, *NODE, place, "launch.timeout_seconds=1"), status=2)
    assert len(err.splitlines()) == 1, err
    assert "only 1 of 2 nodes" in err
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nobody_is_gives_up(start: Start, tmp_path: Path) -> None:
    # An address for documentation: no machine has it.
    place = "launch.rendezvous=192.0.2.1:29500"
    ((_, err),) = finish(start(*TRAIN, *NODE, place, "launch.timeout_seconds=1"), status=2)
    assert len(err.splitlines()) == 1, err
    assert "nobody answered" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_different_commands_are_refused(start: Start, tmp_path: Path) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    nodes = [start(*TRAIN, *NODE, place, f"optimizer.lr=0.0{lr}") for lr in (1, 2)]
    for _, err in finish(*nodes, status=2):
        assert err.startswith("error: optimizer.lr=0.01: was typed on one of")
    assert list(tmp_path.iterdir()) == []


def as_second_node(place: str, typed: list[str], secret: str = "") -> Messages:
    """Arrive at a meeting in the place of a second node, and return its store."""
    host, port = place.split(":")
    wait_until(lambda: addresses.accepts_connections(host, int(port)))
    store = PrefixStore("meeting", TCPStore(host, int(port), is_master=False))
    messages = Messages(store, secret)
    wait_until(lambda: messages.count("arrived") == 1)
    messages.say("member/1", ["z", 1, "runs/other", typed])
    return messages


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_the_node_with_the_store_stays_until_all_have_read(start: Start) -> None:
    """Else the slower of two refused nodes has nothing to read, and ends with a traceback."""
    place = f"localhost:{free_port()}"
    node = start(*TRAIN, *NODE, f"launch.rendezvous={place}", "optimizer.lr=0.01")
    store = as_second_node(place, ["optimizer.lr=0.02"])
    store.hear("member/0")
    with pytest.raises(subprocess.TimeoutExpired):
        node.wait(timeout=3)
    store.count("read", 1)
    ((_, err),) = finish(node, status=2)
    assert "was typed on one of" in err


@pytest.mark.slow
def test_a_stranger_without_the_secret_is_refused(start: Start, tmp_path: Path) -> None:
    place = f"localhost:{free_port()}"
    secret = tmp_path.with_suffix(".secret")
    secret.write_text("known to the nodes alone\n")
    node = start(*TRAIN, *NODE, f"launch.rendezvous={place}", f"launch.secret_file={secret}")
    stranger = as_second_node(place, [], "guessed by a stranger")
    with pytest.raises(UserError, match=r"launch\.secret: another secret"):
        stranger.hear("member/0")
    ((_, err),) = finish(node, status=2)
    assert err.startswith("error: launch.secret: another secret was given")
    assert len(err.splitlines()) == 1, err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_nodes_whose_store_ends_say_so(start: Start, start_by: StartBy) -> None:
    place = f"launch.rendezvous=localhost:{free_port()}"
    typed = (*TRAIN, "trainer.num_nodes=3", place)
    first = start(*typed)
    store = as_second_node(place.partition("=")[2], [])
    # Started afresh, as torch is told when it is imported to keep its stack traces to itself.
    second = start_by(sys.executable, str(ROOT / "train.py"), *typed)
    wait_until(lambda: store.count("arrived") == 2)
    first.kill()
    ((_, err),) = finish(second, status=2)
    assert len(err.splitlines()) == 1, err
    assert "the process that the others met at has ended" in err


# What torchrun or srun tells a process, what is typed, and what the line must say.
REFUSED = {
    "single": ("torchrun", "strategy=single", ["strategy=single", "strategy=ddp"]),
    "devices": ("torchrun", "strategy=ddp trainer.devices=3", ["trainer.devices=3", "auto"]),
    "nodes": ("torchrun", "strategy=ddp trainer.num_nodes=2", ["use trainer.num_nodes=1"]),
    "place": ("torchrun", "strategy=ddp launch.rendezvous=a:1", ["launch.rendezvous=null"]),
    "sweep": ("torchrun", "-m strategy=ddp seed=1,2", ["-m:", "without torchrun"]),
    "srun": ("srun", "strategy=single", ["srun has started 2"]),
}
TOLD = {
    "torchrun": {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
    "srun": {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_ranks_that_contradict_the_configuration_are_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    starter, typed, words = REFUSED[case]
    for name, value in TOLD[starter].items():
        monkeypatch.setenv(name, value)
    outcome = cli("train.py", *typed.split())
    assert outcome.status == 2
    assert len(outcome.err.splitlines()) == 1, outcome.err
    for word in words:
        assert word in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_pod_of_kubeflow_is_a_node(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has RANK and WORLD_SIZE, of pods, and starts its ranks by itself."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "PET_RDZV_ENDPOINT": "nowhere"}.items():
        monkeypatch.setenv(name, value)
    outcome = cli("train.py", "strategy=ddp", "trainer.num_nodes=2")
    assert outcome.status == 2
    assert "launch.rendezvous=nowhere: must be HOST:PORT" in outcome.err
